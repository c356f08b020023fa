// Prints its descriptors, listed by the C++ library.
#include <filesystem>
#include <iostream>

int main() {
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd"))
        std::cout << entry.path() << '\n';
    for (const auto &entry : std::filesystem::recursive_directory_iterator("/proc/self/fdinfo"))
        std::cout << entry.path() << '\n';
}
