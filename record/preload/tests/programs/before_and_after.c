/* Allocates before, in and after main. */
#include <stdlib.h>

static void allocate(size_t size) {
    void *volatile block = malloc(size);
    free(block);
}

static void preinit(void) { allocate(30001); }
__attribute__((section(".preinit_array"), used)) static void (*preinit_entry)(void) = preinit;
__attribute__((constructor)) static void constructor(void) { allocate(30002); }
static void at_exit(void) { allocate(30004); }
__attribute__((destructor)) static void destructor(void) { allocate(30005); }

int main(void) {
    atexit(at_exit);
    allocate(30003);
    return 7;
}
