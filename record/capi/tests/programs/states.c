/*
 * A program, in C and in C++, whose events have enumerations. It prints what it records: a line for each event, with its
 * labels.
 */
#include <dormouse/event.h>

#include <stdio.h>

#ifdef __cplusplus
enum class phase : signed char { QUEUED, RUNNING = 7, DONE = -1 };
#define PHASE(name) DORMOUSE_ENUM(name, phase::QUEUED, phase::RUNNING, ("FINISHED", phase::DONE))
static const phase phases[] = {phase::QUEUED, phase::RUNNING, phase::DONE};
#else
enum phase { QUEUED, RUNNING = 7, DONE = -1 };
#define PHASE(name) DORMOUSE_ENUM(name, QUEUED, RUNNING, ("FINISHED", DONE))
typedef enum phase phase;
static const phase phases[] = {QUEUED, RUNNING, DONE};
#endif
static const char *const names[] = {"QUEUED", "RUNNING", "FINISHED"};

/* Constants that are macros. */
#define LEVEL_LOW 1u
#define LEVEL_HIGH 0xfffffffeu

int main(void)
{
    unsigned id;
    for (id = 0; id < 30; id++) {
        const unsigned from = id % 3, to = (id + 1) % 3;
        const unsigned level = id % 5 == 0 ? LEVEL_HIGH : id % 5 == 1 ? LEVEL_LOW : 77u;
        DORMOUSE_EVENT(job, moved, (id, id), (PHASE(from), phases[from]), (PHASE(to), phases[to]));
        printf("moved %u %s %s\n", id, names[from], names[to]);
        DORMOUSE_EVENT(job, level, (DORMOUSE_ENUM(level, ("LOW", LEVEL_LOW), ("HIGH", LEVEL_HIGH)), level), (text, "text"));
        if (level == 77u)
            printf("level 77\n");
        else
            printf("level %s\n", level == LEVEL_LOW ? "LOW" : "HIGH");
    }
    return 0;
}
