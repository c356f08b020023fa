/* A plugin whose library (gate.c) is loaded before it. */
#include <dormouse/event.h>

void gate_passed(void);
void plugin_work(int number);
void plugin_work(int number)
{
    gate_passed();
    DORMOUSE_EVENT(held, work, (number, number));
}
