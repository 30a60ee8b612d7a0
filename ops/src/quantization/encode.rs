//! Numbers to codes, and back.

use super::{Quantization, QuantizedKind};
use crate::matmul::NF4;

/// A matrix as the slots of [`QuantizedMatmul`](crate::matmul::QuantizedMatmul).
pub(super) struct Encoded {
    /// `[c, n, 4]`
    pub(super) codes: Vec<u8>,
    /// `[g, n]`
    pub(super) scales: Vec<f32>,
    /// `[g, n]`, or nothing.
    pub(super) zero_points: Vec<u8>,
}

/// Encodes a matrix of `columns` columns, whose rows fill cells.
pub(super) fn encode(
    quantization: Quantization,
    columns: usize,
    at: &dyn Fn(usize, usize) -> f32,
    rows: usize,
) -> Encoded {
    let Quantization { kind, group_size, zero_points: has_zero_points } = quantization;
    let (per_cell, groups) = (kind.rows_of_cell(), rows.div_ceil(group_size));
    let mut encoded = Encoded {
        codes: vec![0; rows / per_cell * columns * 4],
        scales: Vec::with_capacity(groups * columns),
        zero_points: vec![],
    };
    for group in 0..groups {
        let rows = group * group_size..rows.min((group + 1) * group_size);
        for column in 0..columns {
            let numbers = rows.clone().map(|row| at(row, column));
            let (scale, zero_point) = fit(kind, has_zero_points, numbers.clone());
            for (row, number) in rows.clone().zip(numbers) {
                let code = code(kind, number, scale, zero_point);
                let bit = row % per_cell * (32 / per_cell);
                encoded.codes[(row / per_cell * columns + column) * 4 + bit / 8] |= code << (bit % 8);
            }
            encoded.scales.push(scale);
            encoded.zero_points.extend(has_zero_points.then_some(zero_point));
        }
    }
    encoded
}

/// The scale and the zero point of a group.
///
/// Without zero points, the number of the largest magnitude has the lowest code of integers, which has the largest
/// magnitude, as in [`Q4_0` of GGML](https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c); with zero points,
/// the smallest and the largest number have the lowest and the highest code, as in ONNX's `DynamicQuantizeLinear`; NF4
/// divides by the largest magnitude.
fn fit(kind: QuantizedKind, has_zero_points: bool, numbers: impl Iterator<Item = f32>) -> (f32, u8) {
    let (min, max) = numbers.fold((0.0_f32, 0.0_f32), |(min, max), x| (min.min(x), max.max(x)));
    let extreme = if max > -min { max } else { min };
    if kind == QuantizedKind::Nf4 {
        return (extreme.abs(), 0);
    }
    if !has_zero_points {
        return (-extreme / f32::from(kind.middle()), kind.middle());
    }
    let codes = f32::from(highest(kind));
    let scale = max / codes - min / codes;
    let zero_point = if scale > 0.0 { (-min / scale).round_ties_even().min(codes) as u8 } else { 0 };
    (scale, zero_point)
}

fn highest(kind: QuantizedKind) -> u8 {
    if kind == QuantizedKind::Int8 { u8::MAX } else { 15 }
}

/// The code whose number is the nearest.
fn code(kind: QuantizedKind, number: f32, scale: f32, zero_point: u8) -> u8 {
    let ratio = if scale == 0.0 { 0.0 } else { number / scale };
    if kind == QuantizedKind::Nf4 {
        let far = |level: f32| (ratio - level).abs();
        let (mut nearest, mut distance) = (0, far(NF4[0]));
        for (code, level) in (0_u8..).zip(NF4) {
            if far(level) < distance {
                (nearest, distance) = (code, far(level));
            }
        }
        return nearest;
    }
    (ratio.round_ties_even() + f32::from(zero_point)).clamp(0.0, highest(kind).into()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(
        encoded: &Encoded,
        quantization: Quantization,
        columns: usize,
        row: usize,
        column: usize,
    ) -> f32 {
        let kind = quantization.kind;
        let per_cell = kind.rows_of_cell();
        let bit = row % per_cell * (32 / per_cell);
        let byte = encoded.codes[(row / per_cell * columns + column) * 4 + bit / 8];
        let code = byte >> (bit % 8) & highest(kind);
        let group = row / quantization.group_size * columns + column;
        let zero_point = encoded.zero_points.get(group).copied().unwrap_or(kind.middle());
        let level = match kind {
            QuantizedKind::Nf4 => NF4[usize::from(code)],
            _ => f32::from(code) - f32::from(zero_point),
        };
        level * encoded.scales[group]
    }

    #[test]
    fn numbers_are_near_their_codes() {
        let numbers: Vec<f32> = (0..48 * 3).map(|i| ((i * 37 % 101) as f32 - 30.0) / 50.0).collect();
        // The largest error in parts of the largest magnitude, which is 1.4: half a step, or half a gap of NF4; without
        // zero points, the highest code has a step less than the lowest.
        for (text, most) in
            [("int8", 1.0 / 128.0), ("int4", 1.0 / 8.0), ("int4:16:asymmetric", 1.0 / 15.0), ("nf4", 0.16)]
        {
            let quantization: Quantization = text.parse().unwrap();
            let encoded = encode(quantization, 3, &|row, column| numbers[row * 3 + column], 48);
            for (i, wanted) in numbers.iter().enumerate() {
                let found = number(&encoded, quantization, 3, i / 3, i % 3);
                assert!((found - wanted).abs() <= 1.4 * most, "{text}: {wanted} is {found}");
            }
        }
    }

    #[test]
    fn zeros_stay_zero() {
        for text in ["int8", "int8:8:asymmetric", "int4", "int4:8:asymmetric", "nf4"] {
            let quantization: Quantization = text.parse().unwrap();
            let encoded =
                encode(quantization, 2, &|row, column| if row < 64 { 0.0 } else { column as f32 }, 72);
            assert_eq!(number(&encoded, quantization, 2, 3, 1), 0.0, "{text}");
        }
    }

    #[test]
    fn codes_of_nf4_have_the_nearest_level() {
        let numbers: Vec<f32> = (0..64).map(|i| (i as f32 - 20.0) * 0.03).collect();
        let encoded = encode("nf4:64".parse().unwrap(), 1, &|row, _| numbers[row], 64);
        assert_eq!(encoded.scales, [numbers[63]]);
        for (row, number) in numbers.iter().enumerate() {
            let ratio = number / numbers[63];
            let code = encoded.codes[row / 2] >> (row % 2 * 4) & 15;
            let nearest = NF4.iter().map(|level| (level - ratio).abs()).fold(f32::MAX, f32::min);
            assert_eq!((NF4[usize::from(code)] - ratio).abs(), nearest);
        }
    }
}
