# Goal `long`: a build of more than a minute on two CPUs: SQLite, which is one large file, and Lua in several configurations. A file takes
# as much CPU time on average as one of a kernel.
LEVELS = O1 O2 O3 Os
CONFIGURATIONS = $(foreach level,$(LEVELS),$(foreach macro,LUAI_ASSERT LUA_USE_APICHECK LUA_COMPAT_5_3,$(level)-$(macro)))

# The large files first, so that the small ones fill all CPUs until the end.
long: long/built/sqlite-O3.o long/built/sqlite-O2.o

long/built/sqlite-%.o: long/sqlite3.c | long/built
	$(CC) -$* -fPIC -c -o $@ $<

# $(1) is an optimisation level and a macro of Lua's configuration, such as O2-LUA_COMPAT_5_3.
define configuration
long: $(SOURCES:%.c=long/built/$(1)/%.o)

long/built/$(1)/%.o: %.c | long/built/$(1)
	$$(CC) -$(subst -, -D,$(1))=1 -fPIC -DLUA_USE_LINUX -c -o $$@ $$<
endef

$(foreach name,$(CONFIGURATIONS),$(eval $(call configuration,$(name))))

long/built $(CONFIGURATIONS:%=long/built/%):
	mkdir -p $@

clean: clean-long

clean-long:
	rm -rf long/built

.PHONY: long clean-long
