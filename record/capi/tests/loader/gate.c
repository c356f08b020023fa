/* A library whose constructor stays in dlopen until a process opens the FIFO that GATE names. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

void gate_passed(void);
void gate_passed(void)
{
}

__attribute__((constructor)) static void wait_at_the_gate(void)
{
    static const char text[] = "in the constructor\n";
    const char *gate = getenv("GATE");
    int file;

    if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0 || gate == NULL)
        abort();
    file = open(gate, O_RDONLY);
    if (file < 0)
        abort();
    close(file);
}
