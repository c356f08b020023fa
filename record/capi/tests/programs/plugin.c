#include <dormouse/event.h>

void plugin_work(int round);
void plugin_work(int round)
{
    DORMOUSE_EVENT(plugin, work, (round, round));
}
