/* A plugin that is loaded after its library (gate.c) has been. */
#include <dormouse/event.h>

void gate_passed(void);
void plugin_work(int number);
void plugin_work(int number)
{
    gate_passed();
    DORMOUSE_EVENT(held, work, (number, number));
}
