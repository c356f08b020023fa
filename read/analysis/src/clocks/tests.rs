use dormouse_ctf::Clock;
use dormouse_ctf::time::Scale;
use dormouse_testing::random;

use super::*;

/// Begin of the simulated time, in nanoseconds since the epoch.
const BEGIN_NS: i64 = 1_700_000_000_000_000_000;

/// Returns what a host's clock shows. It is `offset_ns` behind at the begin, and slow by `drift`.
fn clock(true_ns: i64, offset_ns: i64, drift: f64) -> i64 {
    true_ns - offset_ns - ((true_ns - BEGIN_NS) as f64 * drift).round() as i64
}

/// Returns the correction of what a host's clock shows.
fn corrected_ns(correction: &Correction, shown_ns: i64) -> i64 {
    // Tick 0 is before all times of the tests.
    let offset_s = -5_000_000_000;
    let (name, description) = (String::new(), String::new());
    let clock = Clock { name, description, frequency_hz: 1_000_000_000, offset_s, offset_cycles: 0 };
    Scale::of(&clock).corrected(correction).epoch_ns(shown_ns.abs_diff(offset_s * 1_000_000_000))
}

/// Returns messages between hosts whose clocks have these offsets and drifts. They take from `least_ns` to forty times
/// as long.
fn messages(
    hosts: &[(i64, f64)],
    pairs: &[(usize, usize)],
    least_ns: usize,
    seed: u64,
) -> (Messages, Vec<(usize, i64)>) {
    let mut random = random(seed);
    let classes = MessageClasses { send: "s".into(), receive: "r".into(), key: Vec::new() };
    let (mut messages, mut truth) = (Messages::of(classes), Vec::new());
    messages.spans = vec![Some((i64::MAX, i64::MIN)); hosts.len()];
    for number in 0..400 {
        let sent = BEGIN_NS + number * 50_000_000 + random(10_000_000) as i64;
        let received = sent + (least_ns + random(40 * least_ns)) as i64;
        let (a, b) = pairs[random(pairs.len())];
        let (from, to) = if random(2) == 0 { (a, b) } else { (b, a) };
        let at = |host: usize, ns| clock(ns, hosts[host].0, hosts[host].1);
        messages.between.entry((from, to)).or_default().add(at(from, sent), at(to, received));
        for (host, ns) in [(from, sent), (to, received)] {
            let span = messages.spans[host].get_or_insert((0, 0));
            *span = (span.0.min(at(host, ns)), span.1.max(at(host, ns)));
            truth.push((host, ns));
        }
    }
    (messages, truth)
}

#[test]
fn the_error_is_within_the_reported_bound() {
    let mut random = random(7);
    for seed in 0..200 {
        let mut any = |most: i64| random(2 * most as usize) as i64 - most;
        let of_second = (any(10_i64.pow(1 + seed as u32 % 18)), any(200_000) as f64 * 1e-9);
        let hosts = [(0, 0.0), of_second];
        let (messages, truth) = messages(&hosts, &[(0, 1)], 20_000, seed);
        let corrected = messages.corrections(2).remove(0).expect("they fit");
        let worst = truth.iter().filter(|(host, _)| *host == 1).map(|(_, true_ns)| {
            let found = corrected_ns(&corrected.correction, clock(*true_ns, of_second.0, of_second.1));
            found.abs_diff(*true_ns)
        });
        let worst = worst.max().expect("messages");
        assert!(worst <= corrected.error_ns, "{seed}: {worst} {corrected:?}");
        assert!(
            corrected.error_ns < 400_000,
            "{seed}: half of the shortest way there and back, and what the messages leave open: {corrected:?}"
        );
        assert!(corrected.messages.iter().sum::<u64>() == 400 && corrected.beside == 0);
    }
}

#[test]
fn hosts_without_messages_to_the_first_one_go_by_way_of_others() {
    let hosts = [(0, 0.0), (5_000_000_000, 30e-6), (-7_000_000_000_000, -80e-6), (3, 0.0)];
    let (messages, truth) = messages(&hosts, &[(0, 1), (1, 2)], 5_000, 3);
    let [first, second, third] = messages.corrections(4).try_into().expect("three");
    let (first, second) = (first.expect("it fits"), second.expect("it fits"));
    assert_eq!((second.beside, third), (1, Err(Unfit::OneWay)));
    assert!(second.error_ns > first.error_ns);
    for (host, true_ns) in truth.into_iter().filter(|(host, _)| *host == 2) {
        let found = corrected_ns(&second.correction, clock(true_ns, hosts[host].0, hosts[host].1));
        assert!(found.abs_diff(true_ns) <= second.error_ns, "{found} {true_ns} {second:?}");
    }
}

#[test]
fn impossible_corrections_are_reported() {
    let classes = MessageClasses { send: "s".into(), receive: "r".into(), key: Vec::new() };
    let mut messages = Messages::of(classes);
    messages.spans = vec![Some((0, 3_000_000)); 2];
    assert_eq!(messages.corrections(2), [Err(Unfit::OneWay)]);
    messages.between.entry((0, 1)).or_default().add(1_000_000, 1_000_500);
    assert_eq!(messages.corrections(2), [Err(Unfit::OneWay)]);
    messages.between.entry((1, 0)).or_default().add(2_000_000, 2_000_500);
    assert!(messages.corrections(2)[0].is_ok());
    // A message arrives before it was sent, whatever the clock: no message takes negative time.
    messages.between.entry((1, 0)).or_default().add(1_900_000, 1_890_000);
    assert_eq!(messages.corrections(2), [Err(Unfit::Contradiction)]);
}

#[test]
fn an_offset_beyond_64_bits_is_reported() {
    const APART_NS: i64 = 5_000_000_000_000_000_000;
    let classes = MessageClasses { send: "s".into(), receive: "r".into(), key: Vec::new() };
    let mut messages = Messages::of(classes);
    messages.spans = vec![Some((-APART_NS, 1_000 - APART_NS)), Some((APART_NS, APART_NS + 1_000))];
    messages.between.entry((0, 1)).or_default().add(-APART_NS, APART_NS + 10);
    messages.between.entry((1, 0)).or_default().add(APART_NS + 500, 600 - APART_NS);
    assert_eq!(messages.corrections(2), [Err(Unfit::Far)]);
}
