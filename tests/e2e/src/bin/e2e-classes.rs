//! More event classes than a byte can count.

macro_rules! each {
    ($number:ident, [$($provider:ident)*] $names:tt) => { $(each!(@ $number, $provider $names);)* };
    // A function for each event, which compiles faster than one function with all events.
    (@ $number:ident, $provider:ident [$($name:ident)*]) => {
        $({
            #[inline(never)]
            fn emit($number: u64) {
                dormouse::event!($provider.$name, $number);
            }
            emit($number);
        })*
    };
}

fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    for number in 0..rounds {
        each!(number, [a b c d e f g h i j k l m n o p q] [a b c d e f g h i j k l m n o p]);
    }
}
