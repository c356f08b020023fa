#include "common.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

enum class Size : short { small = -3, large = 3 };
enum Plain { plain = 4 };

struct Constants {
    static const int undefined = 17; /* declared only: binding a reference to it would not link */
    unsigned three : 3;
};

struct __attribute__((packed)) Packed {
    char pad;
    long unaligned;
};

struct Traced {
    int id;
    explicit Traced(int number) : id(number) { DORMOUSE_EVENT(cpp, constructed, (id, id)); }
    ~Traced() { DORMOUSE_EVENT(cpp, destroyed, (id, this->id)); }
};

/* Constructed before main and destroyed after it. */
Traced global(1);

template <class T> void instance(const T &value)
{
    DORMOUSE_EVENT(cpp, instance, (value, value));
}

template <int N> struct Holder {
    static void call() { DORMOUSE_EVENT(cpp, holder, (n, N)); }
};

} /* namespace */

inline void inline_function(int n)
{
    DORMOUSE_EVENT(cpp, inlined, (n, n));
}

std::string make(const char *text)
{
    return std::string(text) + " that is long enough to live on the heap";
}

void cpp_unit()
{
    const Constants constants = {5};
    const Packed packed = {0, -9};
    const std::string text = "string";
    const std::string_view cut("with\0nul", 8);
    const std::vector<int> vector = {1, 2, 3};
    const std::array<unsigned short, 2> array = {{4, 5}};
    const std::vector<double> empty;
    const char *const none = nullptr;

    DORMOUSE_EVENT(cpp, scalars, (b, true), (c, 'c'), (w, L'w'), (scoped, Size::small), (plain, plain), (null, nullptr),
                   (constant, Constants::undefined), (bits, constants.three), (packed, packed.unaligned),
                   (comma, std::pair<int, int>(1, 2).second), (f, 1.5f), (u, 18446744073709551615u));
    DORMOUSE_EVENT(cpp, texts, (text, text), (temporary, make("temporary")), (view, cut), (literal, "literal"), (none, none),
                   (pointer, make("pointer").c_str()));
    DORMOUSE_EVENT(cpp, runs, (vector, vector), (array, array), (empty, empty),
                   (pointer, DORMOUSE_ARRAY(vector.data(), 2)), (bytes, DORMOUSE_BYTES(text.data(), text.size())));
    {
        Traced local(2);
    }
    DORMOUSE_EVENT(cpp, nothing);
    instance(1);
    instance('i');
    instance(std::string("s"));
    Holder<1>::call();
    Holder<2>::call();
    inline_function(7);
    shared_inline(4);
    auto lambda = [&](auto value) { DORMOUSE_EVENT(cpp, lambda, (value, value), (text, text)); };
    lambda(1);
    lambda(2.5);
    int order = 0;
    auto next = [&] { return ++order; };
    DORMOUSE_EVENT(cpp, order, (first, next()), (second, next()), (third, next()));
}
