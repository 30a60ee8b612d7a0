//! Stretches of a sequence that repeat: equal layers of a model.

/// Consecutive repetitions of `period` items, `count` times from `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    pub(crate) start: usize,
    pub(crate) period: usize,
    pub(crate) count: usize,
}

/// The longest period that is looked for.
const LONGEST: usize = 512;
/// The least number of items in all repetitions together.
const LEAST: usize = 8;

/// Repetitions that do not overlap, by start. Those that cover most items come first, among them the shortest period.
pub(crate) fn repeats<T: PartialEq>(items: &[T]) -> Vec<Repeat> {
    let mut candidates = vec![];
    for period in 1..=LONGEST.min(items.len() / 2) {
        let mut start = 0;
        // Items from `start` on equal those one period later, up to `at`.
        for at in 0..=items.len() - period {
            if at < items.len() - period && items[at] == items[at + period] {
                continue;
            }
            let count = (at - start) / period + 1;
            if count > 1 && count * period >= LEAST {
                candidates.push(Repeat { start, period, count });
            }
            start = at + 1;
        }
    }
    candidates.sort_by_key(|r| (std::cmp::Reverse(r.count * r.period), r.period, r.start));
    let mut taken = vec![false; items.len()];
    let mut found: Vec<Repeat> = vec![];
    for repeat in candidates {
        let range = repeat.start..repeat.start + repeat.count * repeat.period;
        if !taken[range.clone()].contains(&true) {
            taken[range].fill(true);
            found.push(repeat);
        }
    }
    found.sort_by_key(|r| r.start);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(usize, usize, usize)> {
        repeats(text.as_bytes()).iter().map(|r| (r.start, r.period, r.count)).collect()
    }

    #[test]
    fn equal_layers_are_found() {
        assert_eq!(of("xabcdabcdabcdy"), [(1, 4, 3)]);
        assert_eq!(of("aaaaaaaaab"), [(0, 1, 9)]);
        assert_eq!(of("xabbcabbcabbcabbcy"), [(1, 4, 4)]);
        assert_eq!(of("abcdabcdxxefghijefghij"), [(0, 4, 2), (10, 6, 2)]);
        assert_eq!(of("abababxcdcdcd"), []);
        assert_eq!(of(""), []);
        assert_eq!(of("a"), []);
    }
}
