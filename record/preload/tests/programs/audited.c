/* Uses data that libc keeps for each thread, and prints its process id. Built with AUDIT, it is a module of LD_AUDIT
 * that does nothing. */
#ifdef AUDIT
unsigned la_version(unsigned version) { return version; }
#else
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    volatile int letter = 'x';
    setlocale(LC_ALL, "");
    errno = 4242;
    if (!isalpha(letter) || toupper(letter) != 'X' || errno != 4242)
        return 1;
    printf("%d\n", (int)getpid());
    return 0;
}
#endif
