/* A plugin with ten tracepoints. Copies differ in the number in their names, which the test writes into the file. */
#include <dormouse/event.h>

void plugin_work(int number);
void plugin_work(int number)
{
    DORMOUSE_EVENT(storm_000, e0, (number, number));
    DORMOUSE_EVENT(storm_000, e1, (number, number), (text, "storm"));
    DORMOUSE_EVENT(storm_000, e2, (number, (long)number));
    DORMOUSE_EVENT(storm_000, e3);
    DORMOUSE_EVENT(storm_000, e4, (number, (double)number));
    DORMOUSE_EVENT(storm_000, e5, (number, (short)number));
    DORMOUSE_EVENT(storm_000, e6, (number, number), (again, number));
    DORMOUSE_EVENT(storm_000, e7, (where, (void *)&number));
    DORMOUSE_EVENT(storm_000, e8, (number, number > 0));
    DORMOUSE_EVENT(storm_000, e9, (number, number), (text, "calm"));
}
