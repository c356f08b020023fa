// Allocates, throws through frames, uses a static object and threads.
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static std::map<std::string, int> table{{"one", 1}, {"two", 2}};

int main() {
    std::vector<std::thread> threads;
    std::vector<int> sums(4);
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&sums, i] {
            for (int n = 0; n < 1000; n++)
                try {
                    throw std::runtime_error(std::string(50, 'x'));
                } catch (const std::exception &error) {
                    sums[i] += error.what()[0] == 'x';
                }
        });
    for (auto &thread : threads)
        thread.join();
    int sum = 0;
    for (int part : sums)
        sum += part;
    std::cout << sum << ' ' << table["two"] << std::endl;
}
