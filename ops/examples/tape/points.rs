//! MiniTorch's point sets in the unit square.

use rand::{Rng, RngExt};

/// A point, and whether it is in the second class.
pub(crate) struct Point {
    pub(crate) x: f32,
    pub(crate) y: f32,
    pub(crate) second: bool,
}

type Set = fn(usize, &mut dyn Rng) -> Vec<Point>;

pub(crate) const SETS: [(&str, Set); 6] = [
    ("simple", |n, rng| random(n, rng, |x, _| x < 0.5)),
    ("diagonal", |n, rng| random(n, rng, |x, y| x + y < 0.5)),
    ("split", |n, rng| random(n, rng, |x, _| !(0.2..=0.8).contains(&x))),
    ("xor", |n, rng| random(n, rng, |x, y| (x < 0.5) != (y < 0.5))),
    ("circle", |n, rng| random(n, rng, |x, y| (x - 0.5) * (x - 0.5) + (y - 0.5) * (y - 0.5) > 0.1)),
    ("spiral", |n, _| spiral(n)),
];

/// Uniformly random points, classified by a rule.
fn random(n: usize, rng: &mut dyn Rng, second: fn(f32, f32) -> bool) -> Vec<Point> {
    let point = |_| {
        let (x, y) = (rng.random(), rng.random());
        Point { x, y, second: second(x, y) }
    };
    (0..n).map(point).collect()
}

/// Two intertwined spirals.
fn spiral(n: usize) -> Vec<Point> {
    let half = n / 2;
    let turn = |i: usize| 10.0 * i as f32 / half as f32;
    let (across, up) = (|t: f32| t * libm::cosf(t) / 20.0, |t: f32| t * libm::sinf(t) / 20.0);
    let first = (5..5 + half).map(|i| (across(turn(i)), up(turn(i)), false));
    let second = (5..5 + half).map(|i| (up(-turn(i)), across(-turn(i)), true));
    first.chain(second).map(|(x, y, second)| Point { x: x + 0.5, y: y + 0.5, second }).collect()
}
