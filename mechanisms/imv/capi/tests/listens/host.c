/* A program without Dormouse. It loads a plugin that listens, unloads it, and lives until its input ends. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*listen)(void);
    if (!plugin)
        return fputs(dlerror(), stderr), 2;
    *(void **)&listen = dlsym(plugin, "plugin_listen");
    printf("%d ", listen());
    printf("%d\n", dlclose(plugin));
    fflush(stdout);
    return getchar() != EOF;
}
