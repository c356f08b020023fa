/* Restarts a program as a process without restartable sequences. */
#ifndef WITHOUT_H
#define WITHOUT_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Restarts the program with a kernel that refuses restartable sequences, and a C library that does not request them. */
static inline void without_rseq(char *program)
{
#define STATEMENT(field, value) { (uint16_t)(field), 0, 0, (uint32_t)(value) }
    struct sock_filter code[] = {
        STATEMENT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        { (uint16_t)(BPF_JMP | BPF_JEQ | BPF_K), 0, 1, (uint32_t)SYS_rseq },
        STATEMENT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        STATEMENT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter;
    filter.len = sizeof code / sizeof *code;
    filter.filter = code;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0)
        abort();
    char mode[] = "refused";
    char *arguments[] = { program, mode, NULL };
    execv(program, arguments);
    abort();
}

#endif
