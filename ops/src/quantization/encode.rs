//! Numbers to codes.

use std::ops::Range;

use autobwd::{DType, Result, Tensor};

use super::{Quantization, QuantizedKind};
use crate::matmul::NF4;

/// The number of columns that are encoded together: a row of their cells fills a cache line.
const TILE: usize = 16;

/// A matrix as the slots of [`QuantizedMatmul`](crate::matmul::QuantizedMatmul).
pub(super) struct Encoded {
    /// `[c, n, 4]`
    pub(super) codes: Tensor,
    /// `[g, n]`
    pub(super) scale: Tensor,
    /// `[g, n]`, or nothing.
    pub(super) zero_point: Option<Tensor>,
}

impl Encoded {
    /// The size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let tensors = [&self.codes, &self.scale].into_iter().chain(&self.zero_point);
        tensors.map(|tensor| tensor.bytes().len()).sum()
    }
}

/// The right factor of a product, `[rows, columns]`.
#[derive(Clone, Copy)]
pub(super) struct MatrixLayout {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Whether the elements are in the order of the transpose.
    pub(super) is_transposed: bool,
}

impl MatrixLayout {
    /// The elements in some rows of a column: the first, and the distance of others.
    fn rows_of_column(self, rows: &Range<usize>, column: usize) -> (usize, usize) {
        match self.is_transposed {
            true => (column * self.rows + rows.start, 1),
            false => (rows.start * self.columns + column, self.columns),
        }
    }
}

/// Encodes a matrix whose rows fill cells; `None` if an element is not finite.
pub(super) fn encode<T: Copy>(
    quantization: Quantization,
    layout: MatrixLayout,
    elements: &[T],
    convert: impl Fn(T) -> f32,
) -> Result<Option<Encoded>> {
    let Quantization { kind, group_size, zero_points: has_zero_points } = quantization;
    let (rows, columns, per_cell) = (layout.rows, layout.columns, kind.rows_of_cell());
    let groups = [rows.div_ceil(group_size), columns];
    let mut codes = Tensor::zeros(DType::U8, &[rows / per_cell, columns, 4])?;
    let mut scale = Tensor::zeros(DType::F32, &groups)?;
    let mut zero_point = has_zero_points.then(|| Tensor::zeros(DType::U8, &groups)).transpose()?;
    let (cells, scales) = (codes.slice_mut::<u8>()?.as_chunks_mut::<4>().0, scale.slice_mut::<f32>()?);
    let zero_points = zero_point.as_mut().map(Tensor::slice_mut::<u8>).transpose()?;
    let zero_points = zero_points.unwrap_or_default();

    let mut numbers = vec![0.0; rows.min(group_size)];
    let mut group_codes = vec![0; numbers.len()];
    for first in (0..columns).step_by(TILE) {
        for group in 0..groups[0] {
            let of_group = group * group_size..rows.min((group + 1) * group_size);
            let numbers = &mut numbers[..of_group.len()];
            let group_codes = &mut group_codes[..of_group.len()];
            for column in first..columns.min(first + TILE) {
                let (start, step) = layout.rows_of_column(&of_group, column);
                copy(&elements[start..], step, &convert, numbers);
                if !numbers.iter().fold(true, |all, x| all & x.is_finite()) {
                    return Ok(None);
                }
                let (scale, zero_point) = fit(kind, has_zero_points, numbers);
                let at = group * columns + column;
                scales[at] = scale;
                if let Some(own) = zero_points.get_mut(at) {
                    *own = zero_point;
                }
                to_codes(kind, numbers, scale, zero_point, group_codes);
                let cells = cells[of_group.start / per_cell * columns + column..].iter_mut().step_by(columns);
                pack(kind, group_codes, cells);
            }
        }
    }
    Ok(Some(Encoded { codes, scale, zero_point }))
}

/// Copies each element at a multiple of a distance.
fn copy<T: Copy>(elements: &[T], step: usize, convert: impl Fn(T) -> f32, numbers: &mut [f32]) {
    // Neighbours are copied several at a time.
    match step {
        1 => numbers.iter_mut().zip(elements).for_each(|(number, x)| *number = convert(*x)),
        _ => numbers
            .iter_mut()
            .zip(elements.iter().step_by(step))
            .for_each(|(number, x)| *number = convert(*x)),
    }
}

/// The scale and the zero point of a group.
///
/// Without zero points, the number of the largest magnitude has the lowest code of integers, which has the largest
/// magnitude, as in [`Q4_0` of GGML](https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c); with zero points,
/// the smallest and the largest number have the lowest and the highest code, as in ONNX's `DynamicQuantizeLinear`; NF4
/// divides by the largest magnitude.
fn fit(kind: QuantizedKind, has_zero_points: bool, numbers: &[f32]) -> (f32, u8) {
    let (min, max) = range(numbers);
    let extreme = if max > -min { max } else { min };
    if kind == QuantizedKind::Nf4 {
        return (extreme.abs(), 0);
    }
    if !has_zero_points {
        return (-extreme / f32::from(kind.middle()), kind.middle());
    }
    let codes = f32::from(highest(kind));
    let scale = max / codes - min / codes;
    let zero_point = if scale > 0.0 { nearest_integer(-min / scale).clamp(0, codes as i32) as u8 } else { 0 };
    (scale, zero_point)
}

/// The highest code.
fn highest(kind: QuantizedKind) -> u8 {
    if kind == QuantizedKind::Int8 { u8::MAX } else { 15 }
}

/// The smallest and the largest number of a group, or 0.
fn range(numbers: &[f32]) -> (f32, f32) {
    // Groups fill cells, of 4 or 8 rows.
    let (mut min, mut max) = ([0.0_f32; 4], [0.0_f32; 4]);
    for four in numbers.as_chunks::<4>().0 {
        for (lane, x) in four.iter().enumerate() {
            min[lane] = if *x < min[lane] { *x } else { min[lane] };
            max[lane] = if *x > max[lane] { *x } else { max[lane] };
        }
    }
    (min.into_iter().fold(0.0, f32::min), max.into_iter().fold(0.0, f32::max))
}

/// The integer that is the nearest to a number below 2²² in magnitude, ties to even. Processors without an instruction
/// for it need no function call.
fn nearest_integer(x: f32) -> i32 {
    // 1.5 · 2²³: sums with it have no bits for fractions.
    const OFFSET: f32 = 12_582_912.0;
    (x + OFFSET).to_bits().wrapping_sub(OFFSET.to_bits()) as i32
}

/// The level of NF4 that is the nearest to a number: distances fall up to it, and rise after it.
fn nearest_level(x: f32) -> u8 {
    let is_nearer = |pair: &[f32]| (x - pair[1]).abs() < (x - pair[0]).abs();
    NF4.windows(2).map(|pair| u8::from(is_nearer(pair))).sum()
}

/// The codes whose numbers are the nearest.
fn to_codes(kind: QuantizedKind, numbers: &[f32], scale: f32, zero_point: u8, codes: &mut [u8]) {
    // All numbers are 0 if the scale is.
    let scale = if scale == 0.0 { f32::INFINITY } else { scale };
    let pairs = codes.iter_mut().zip(numbers);
    if kind == QuantizedKind::Nf4 {
        return pairs.for_each(|(code, x)| *code = nearest_level(x / scale));
    }
    let (zero_point, highest) = (i32::from(zero_point), i32::from(highest(kind)));
    pairs.for_each(|(code, x)| *code = (nearest_integer(x / scale) + zero_point).clamp(0, highest) as u8);
}

/// Writes the codes of a column into its cells.
fn pack<'a>(kind: QuantizedKind, codes: &[u8], cells: impl Iterator<Item = &'a mut [u8; 4]>) {
    match kind {
        QuantizedKind::Int8 => {
            cells.zip(codes.as_chunks::<4>().0).for_each(|(cell, codes)| *cell = *codes);
        }
        _ => {
            for (cell, [a, b, c, d, e, f, g, h]) in cells.zip(codes.as_chunks::<8>().0) {
                *cell = [a | b << 4, c | d << 4, e | f << 4, g | h << 4];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use autobwd::tensor::Element;

    use super::*;

    fn elements<T: Element>(tensor: &Tensor) -> &[T] {
        tensor.slice().unwrap()
    }

    /// Encodes a matrix by rows, and requires the same codes of its transpose.
    fn encoded(quantization: Quantization, columns: usize, numbers: &[f32]) -> Encoded {
        let rows = numbers.len() / columns;
        let by_columns: Vec<f32> =
            (0..numbers.len()).map(|i| numbers[i % rows * columns + i / rows]).collect();
        let [own, other] = [(numbers, false), (&by_columns[..], true)].map(|(elements, is_transposed)| {
            let layout = MatrixLayout { rows, columns, is_transposed };
            encode(quantization, layout, elements, |x| x).unwrap().unwrap()
        });
        assert!(own.codes == other.codes && own.scale == other.scale && own.zero_point == other.zero_point);
        own
    }

    #[test]
    fn codes_are_the_nearest_of_all() {
        let numbers: Vec<f32> = (0..64 * 19).map(|i| ((i * 7919 % 1009) as f32 - 300.0) / 77.0).collect();
        for text in ["int8", "int8:8:asymmetric", "int8:64", "int4", "int4:16:asymmetric", "nf4:32"] {
            let quantization: Quantization = text.parse().unwrap();
            let kind = quantization.kind;
            let encoded = encoded(quantization, 19, &numbers);
            for (i, wanted) in numbers.iter().enumerate() {
                let (row, column) = (i / 19, i % 19);
                let found = number(&encoded, quantization, 19, row, column);
                let group = row / quantization.group_size * 19 + column;
                let scale = elements::<f32>(&encoded.scale)[group];
                let zero_point =
                    encoded.zero_point.as_ref().map_or(kind.middle(), |own| elements::<u8>(own)[group]);
                let nearest = (0..=highest(kind))
                    .map(|code| match kind {
                        QuantizedKind::Nf4 => NF4[usize::from(code)],
                        _ => f32::from(code) - f32::from(zero_point),
                    })
                    .map(|level| (level * scale - wanted).abs())
                    .fold(f32::MAX, f32::min);
                assert!((found - wanted).abs() <= nearest + 1e-6, "{text}: {wanted} is {found}");
            }
        }
    }

    #[test]
    fn halves_are_rounded_to_even_integers() {
        for (x, wanted) in
            [(0.5, 0), (1.5, 2), (-0.5, 0), (-2.5, -2), (2.499, 2), (-128.0, -128), (255.0, 255)]
        {
            assert_eq!(nearest_integer(x), wanted, "{x}");
        }
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut elements = [1.0; 64];
            elements[37] = x;
            let layout = MatrixLayout { rows: 32, columns: 2, is_transposed: false };
            assert!(encode(Quantization::INT8, layout, &elements, |x| x).unwrap().is_none());
        }
    }

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
        let byte = elements::<u8>(&encoded.codes)[(row / per_cell * columns + column) * 4 + bit / 8];
        let code = byte >> (bit % 8) & highest(kind);
        let group = row / quantization.group_size * columns + column;
        let zero_point = encoded.zero_point.as_ref().map_or(kind.middle(), |own| elements::<u8>(own)[group]);
        let level = match kind {
            QuantizedKind::Nf4 => NF4[usize::from(code)],
            _ => f32::from(code) - f32::from(zero_point),
        };
        level * elements::<f32>(&encoded.scale)[group]
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
            let encoded = encoded(quantization, 3, &numbers);
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
            let numbers: Vec<f32> = (0..72 * 2).map(|i| if i < 128 { 0.0 } else { (i % 2) as f32 }).collect();
            let encoded = encoded(quantization, 2, &numbers);
            assert_eq!(number(&encoded, quantization, 2, 3, 1), 0.0, "{text}");
        }
    }

    #[test]
    fn codes_of_nf4_have_the_nearest_level() {
        let numbers: Vec<f32> = (0..64).map(|i| (i as f32 - 20.0) * 0.03).collect();
        let encoded = encoded("nf4:64".parse().unwrap(), 1, &numbers);
        assert_eq!(elements::<f32>(&encoded.scale), [numbers[63]]);
        for (row, number) in numbers.iter().enumerate() {
            let ratio = number / numbers[63];
            let code = elements::<u8>(&encoded.codes)[row / 2] >> (row % 2 * 4) & 15;
            let nearest = NF4.iter().map(|level| (level - ratio).abs()).fold(f32::MAX, f32::min);
            assert_eq!((NF4[usize::from(code)] - ratio).abs(), nearest);
        }
    }
}
