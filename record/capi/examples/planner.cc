/*
 * A tour planner: improves a round trip by reversing parts of it, and traces every improvement.
 *
 *     c++ -std=c++17 -O2 planner.cc -o planner $(pkg-config --cflags --libs dormouse)
 *     dormouse record -e 'planner:*' -- ./planner [STOPS]
 */
#include <dormouse/event.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace {

struct Stop {
    std::string name;
    double x, y;
};

/* Traces a phase: its begin in the constructor, its end in the destructor. */
class Phase {
    const char *name;

public:
    explicit Phase(const char *phase) : name(phase) { DORMOUSE_EVENT(planner, phase_begin, (phase, name)); }
    ~Phase() { DORMOUSE_EVENT(planner, phase_end, (phase, name)); }
    Phase(const Phase &) = delete;
    Phase &operator=(const Phase &) = delete;
};

double distance(const Stop &a, const Stop &b)
{
    return std::hypot(a.x - b.x, a.y - b.y);
}

double length(const std::vector<Stop> &tour)
{
    double sum = 0;
    for (std::size_t i = 0; i < tour.size(); ++i)
        sum += distance(tour[i], tour[(i + 1) % tour.size()]);
    return sum;
}

bool improve(std::vector<Stop> &tour)
{
    bool improved = false;
    const std::size_t count = tour.size();
    for (std::size_t i = 0; i + 2 < count; ++i)
        for (std::size_t j = i + 2; j < count; ++j) {
            const Stop &after = tour[(j + 1) % count];
            const double gain = distance(tour[i], tour[i + 1]) + distance(tour[j], after) - distance(tour[i], tour[j]) -
                                distance(tour[i + 1], after);
            if (gain <= 1e-9)
                continue;
            const auto begin = tour.begin() + 1;
            std::reverse(begin + static_cast<std::ptrdiff_t>(i), begin + static_cast<std::ptrdiff_t>(j));
            DORMOUSE_EVENT(planner, improved, (from, tour[i].name), (to, tour[j].name), (gain, gain));
            improved = true;
        }
    return improved;
}

} /* namespace */

int main(int argc, char **argv)
{
    const int count = argc > 1 ? std::atoi(argv[1]) : 200;
    if (count < 3) {
        std::fprintf(stderr, "usage: %s [STOPS, at least 3]\n", argv[0]);
        return 2;
    }
    std::mt19937 random(1);
    std::uniform_real_distribution<double> coordinate(0, 1000);
    std::vector<Stop> tour;
    for (int i = 0; i < count; ++i)
        tour.push_back({"stop " + std::to_string(i), coordinate(random), coordinate(random)});

    const double before = length(tour);
    {
        Phase phase("improve");
        for (int round = 0; improve(tour); ++round)
            DORMOUSE_EVENT(planner, round, (number, round), (length, length(tour)));
    }
    std::printf("%.0f -> %.0f\n", before, length(tour));
    return 0;
}
