//! Optimizers and schedules by text: any text of the grammar is read and written, and no text panics.

use autobwd_ops::optim::{OptimizerSpec, Schedule};
use proptest::prelude::*;

fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        Just(0.0_f32),
        Just(0.1),
        Just(1e-8),
        Just(f32::MAX),
        Just(f32::MIN_POSITIVE),
        0.0..1.0_f32,
        -1e3..1e3_f32
    ]
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let rate = || prop_oneof![Just(0.1), Just(1e-300), -1.0..1.0_f64];
    let steps = || prop_oneof![Just(0_u64), Just(u64::MAX), 1..1000_u64];
    let leaf = prop_oneof![
        rate().prop_map(Schedule::constant),
        (rate(), rate(), steps()).prop_map(|(rate, gamma, every)| Schedule::step(rate, gamma, every)),
        (rate(), rate(), steps()).prop_map(|(from, to, steps)| Schedule::linear(from, to, steps)),
        (rate(), rate(), steps()).prop_map(|(from, to, steps)| Schedule::cosine(from, to, steps)),
    ];
    leaf.prop_recursive(4, 16, 2, move |inner| {
        prop_oneof![
            (inner.clone(), steps()).prop_map(|(then, steps)| then.warmup(steps)),
            (inner.clone(), steps(), inner).prop_map(|(first, steps, then)| first.then(steps, then)),
        ]
    })
}

/// Any text of the grammar.
fn text() -> impl Strategy<Value = String> {
    let name = proptest::sample::select(OptimizerSpec::names().collect::<Vec<_>>());
    let values = proptest::collection::vec((any::<bool>(), number()), 5);
    let common = (proptest::option::of(number()), proptest::option::of((0..3_usize, number())));
    (name, number(), values, common, proptest::option::of(schedule())).prop_map(
        move |(name, rate, values, (decay, clip), schedule)| {
            let mut text = name.to_string();
            if schedule.is_none() {
                text += &format!(":{rate}");
            }
            for ((option, default), (is_set, value)) in OptimizerSpec::options(name).zip(values) {
                match default {
                    _ if !is_set => {}
                    Some(_) => text += &format!(",{option}={value}"),
                    None => text += &format!(",{option}"),
                }
            }
            text += &decay.map_or(String::new(), |decay| format!(",weight_decay={decay}"));
            let kinds = ["value", "norm", "global_norm"];
            text += &clip.map_or(String::new(), |(kind, limit)| format!(",clip={}({limit})", kinds[kind]));
            text + &schedule.map_or(String::new(), |schedule| format!(",schedule={schedule}"))
        },
    )
}

proptest! {
    #[test]
    fn specs_round_trip(text in text()) {
        let spec: OptimizerSpec = text.parse().unwrap();
        let written = spec.to_string();
        let again: OptimizerSpec = written.parse().unwrap();
        prop_assert_eq!(&again, &spec);
        prop_assert_eq!(again.to_string(), written);
    }

    #[test]
    fn schedules_round_trip(schedule in schedule()) {
        prop_assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
    }

    #[test]
    fn no_text_panics(text in "[a-z:=,().0-9e-]{0,40}") {
        let _ = text.parse::<OptimizerSpec>();
        let _ = text.parse::<Schedule>();
    }
}
