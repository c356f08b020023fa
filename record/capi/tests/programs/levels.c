/* A program, in C and in C++, whose events have levels. Each event tells the number of its level. */
#include <dormouse/event.h>

/* Many programs have such a macro. It does not change the level's name. */
#define DEBUG 1

static void emit(int round)
{
    DORMOUSE_EVENT_LEVEL(EMERG, levels, emerg, (number, 0), (round, round));
    DORMOUSE_EVENT_LEVEL(ERR, levels, err, (number, 3), (round, round));
    DORMOUSE_EVENT_LEVEL(WARNING, levels, warning, (number, 4), (text, "text"), (round, round));
    DORMOUSE_EVENT_LEVEL(DEBUG_LINE, levels, debug_line, (number, 13), (round, round));
    DORMOUSE_EVENT_LEVEL(DEBUG, levels, debug, (number, 14), (round, round));
    DORMOUSE_EVENT_LEVEL(INFO, levels, nothing);
    DORMOUSE_EVENT(levels, plain, (round, round));
}

int main(void)
{
    int round;
    for (round = 0; round < 3; round++)
        emit(round);
    return 0;
}
