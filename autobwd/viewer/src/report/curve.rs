//! Curves of a bounded number of points, however long a run is.
//!
//! If a run is longer than the bound, pairs of points are merged while its log is read.

use serde::{Serialize, Serializer, ser::SerializeStruct};
use serde_json::Value;

/// Several consecutive values as one point.
#[derive(Clone, Copy, Debug)]
struct Point {
    low: f64,
    high: f64,
    sum: f64,
    /// The number of finite values, and of NaN and infinities.
    finite: u32,
    not_finite: u32,
}

impl Point {
    const EMPTY: Point =
        Point { low: f64::INFINITY, high: f64::NEG_INFINITY, sum: 0.0, finite: 0, not_finite: 0 };

    fn add(&mut self, x: f64) {
        if x.is_finite() {
            self.low = self.low.min(x);
            self.high = self.high.max(x);
            self.sum += x;
            self.finite += 1;
        } else {
            self.not_finite += 1;
        }
    }

    fn merged(points: &[(usize, Point)]) -> Point {
        points.iter().fold(Point::EMPTY, |all, (_, point)| Point {
            low: all.low.min(point.low),
            high: all.high.max(point.high),
            sum: all.sum + point.sum,
            finite: all.finite + point.finite,
            not_finite: all.not_finite + point.not_finite,
        })
    }

    /// The mean; large values may add up to an infinity, which JSON has not.
    fn mean(&self) -> Option<f64> {
        let mean = self.sum / f64::from(self.finite);
        (self.finite > 0).then(|| if mean.is_finite() { mean } else { self.high })
    }
}

/// What a curve shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Quantity {
    Value,
    LearningRate,
    /// The norm of all gradients together.
    GradientNorm,
    /// The norm of the gradient of one parameter.
    ParameterGradientNorm,
    SecondsPerStep,
    PeakBytes,
}

/// A quantity over the steps of a run.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    quantity: Quantity,
    name: String,
    /// The points that have values, by number: a log may name other quantities in each line.
    points: Vec<(usize, Point)>,
    last: Option<f64>,
    /// The smallest and the largest finite value, with their steps.
    least: Option<(u64, f64)>,
    most: Option<(u64, f64)>,
    /// The number of NaN and infinities, and the step of the first.
    not_finite: u64,
    first_not_finite: Option<u64>,
}

impl Curve {
    pub(super) fn new(quantity: Quantity, name: &str) -> Curve {
        Curve {
            quantity,
            name: name.into(),
            points: vec![],
            last: None,
            least: None,
            most: None,
            not_finite: 0,
            first_not_finite: None,
        }
    }

    pub(super) fn is_of_parameter(&self) -> bool {
        self.quantity == Quantity::ParameterGradientNorm
    }

    /// Adds the value of a step to a point.
    pub(super) fn add(&mut self, point: usize, step: u64, x: f64) {
        match self.points.last_mut().filter(|(last, _)| *last == point) {
            Some((_, last)) => last.add(x),
            None => {
                let mut new = Point::EMPTY;
                new.add(x);
                self.points.push((point, new));
            }
        }
        self.last = Some(x);
        if !x.is_finite() {
            self.not_finite += 1;
            self.first_not_finite.get_or_insert(step);
            return;
        }
        if self.least.is_none_or(|(_, least)| x < least) {
            self.least = Some((step, x));
        }
        if self.most.is_none_or(|(_, most)| x > most) {
            self.most = Some((step, x));
        }
    }

    /// Merges pairs of points.
    pub(super) fn halve(&mut self) {
        let same = |a: &(usize, Point), b: &(usize, Point)| a.0 / 2 == b.0 / 2;
        self.points = self.points.chunk_by(same).map(|pair| (pair[0].0 / 2, Point::merged(pair))).collect();
    }
}

impl Serialize for Curve {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let column = |of: fn(&Point) -> Option<f64>| -> Vec<Option<f64>> {
            let mut column = vec![None; self.points.last().map_or(0, |(last, _)| last + 1)];
            self.points.iter().for_each(|(at, point)| column[*at] = of(point).map(rounded));
            column
        };
        let mut curve = serializer.serialize_struct("Curve", 9)?;
        curve.serialize_field("quantity", &self.quantity)?;
        curve.serialize_field("name", &self.name)?;
        curve.serialize_field("mean", &column(Point::mean))?;
        if self.points.iter().any(|(_, point)| point.finite > 1) {
            curve.serialize_field("low", &column(|point| (point.finite > 0).then_some(point.low)))?;
            curve.serialize_field("high", &column(|point| (point.finite > 0).then_some(point.high)))?;
        }
        let marks = self.points.iter().filter(|(_, point)| point.not_finite > 0);
        curve.serialize_field("marks", &marks.map(|(at, _)| *at).collect::<Vec<_>>())?;
        curve.serialize_field("last", &self.last.map(number))?;
        curve.serialize_field("least", &self.least)?;
        curve.serialize_field("most", &self.most)?;
        curve.serialize_field("not_finite", &(self.not_finite, self.first_not_finite))?;
        curve.end()
    }
}

/// A number as JSON; NaN and infinities are text.
fn number(x: f64) -> Value {
    if x.is_finite() { x.into() } else { x.to_string().into() }
}

/// Six digits, which is more than a screen has.
fn rounded(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}
