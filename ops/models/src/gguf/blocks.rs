//! The types of tensors in GGUF files: plain numbers, and blocks of small integers with scales. The layouts and formulas
//! are those of `ggml` (`ggml-common.h`, `ggml-quants.c`). Scales are float16; products are float32, in the order of
//! gguf-py, so that values are equal bit for bit.

use autobwd::{DType, tensor::f16};

/// A type of tensors.
#[derive(Debug)]
pub(super) struct BlockType {
    id: u32,
    pub(super) name: &'static str,
    /// The number of values in a block.
    pub(super) values: usize,
    /// The size of a block in bytes.
    pub(super) bytes: usize,
    pub(super) storage: Storage,
}

/// How values are stored.
#[derive(Debug)]
pub(super) enum Storage {
    Plain(DType),
    /// Decodes a block.
    Blocks(fn(&[u8], &mut [f32])),
}

#[rustfmt::skip]
static TYPES: [BlockType; 11] = [
    BlockType { id: 0,  name: "F32",  values: 1,   bytes: 4,   storage: Storage::Plain(DType::F32) },
    BlockType { id: 1,  name: "F16",  values: 1,   bytes: 2,   storage: Storage::Plain(DType::F16) },
    BlockType { id: 30, name: "BF16", values: 1,   bytes: 2,   storage: Storage::Plain(DType::BF16) },
    BlockType { id: 2,  name: "Q4_0", values: 32,  bytes: 18,  storage: Storage::Blocks(q4_0) },
    BlockType { id: 3,  name: "Q4_1", values: 32,  bytes: 20,  storage: Storage::Blocks(q4_1) },
    BlockType { id: 6,  name: "Q5_0", values: 32,  bytes: 22,  storage: Storage::Blocks(q5_0) },
    BlockType { id: 7,  name: "Q5_1", values: 32,  bytes: 24,  storage: Storage::Blocks(q5_1) },
    BlockType { id: 8,  name: "Q8_0", values: 32,  bytes: 34,  storage: Storage::Blocks(q8_0) },
    BlockType { id: 12, name: "Q4_K", values: 256, bytes: 144, storage: Storage::Blocks(q4_k) },
    BlockType { id: 13, name: "Q5_K", values: 256, bytes: 176, storage: Storage::Blocks(q5_k) },
    BlockType { id: 14, name: "Q6_K", values: 256, bytes: 210, storage: Storage::Blocks(q6_k) },
];

impl BlockType {
    pub(super) fn of(id: u32) -> Option<&'static BlockType> {
        TYPES.iter().find(|known| known.id == id)
    }

    /// The names of all types, for errors.
    pub(super) fn names() -> String {
        TYPES.each_ref().map(|known| format!("{} ({})", known.name, known.id)).join(", ")
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Value `i` of 32 integers of 4 bits: the first half in the low bits of 16 bytes, the second half in the high ones.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

/// Bit `i` of 32.
fn bit(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 8] >> (i % 8) & 1
}

/// `d · (q - 8)`: `d`, 16 bytes of `q`.
fn q4_0(block: &[u8], values: &mut [f32]) {
    let d = half(block);
    for (i, value) in values.iter_mut().enumerate() {
        *value = d * (f32::from(nibble(&block[2..], i)) - 8.0);
    }
}

/// `d · q + m`: `d`, `m`, 16 bytes of `q`.
fn q4_1(block: &[u8], values: &mut [f32]) {
    let (d, m) = (half(block), half(&block[2..]));
    for (i, value) in values.iter_mut().enumerate() {
        *value = d * f32::from(nibble(&block[4..], i)) + m;
    }
}

/// `d · (q - 16)`: `d`, 4 bytes of the highest bits of `q`, 16 bytes of the others.
fn q5_0(block: &[u8], values: &mut [f32]) {
    let d = half(block);
    for (i, value) in values.iter_mut().enumerate() {
        *value = d * (f32::from(nibble(&block[6..], i) | bit(&block[2..], i) << 4) - 16.0);
    }
}

/// `d · q + m`: `d`, `m`, and `q` as in Q5_0.
fn q5_1(block: &[u8], values: &mut [f32]) {
    let (d, m) = (half(block), half(&block[2..]));
    for (i, value) in values.iter_mut().enumerate() {
        *value = d * f32::from(nibble(&block[8..], i) | bit(&block[4..], i) << 4) + m;
    }
}

/// `d · q`: `d`, 32 signed bytes of `q`.
fn q8_0(block: &[u8], values: &mut [f32]) {
    let d = half(block);
    for (value, q) in values.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(*q as i8);
    }
}

/// The scale and the minimum of sub-block `j` of 8, integers of 6 bits in 12 bytes.
fn scale_and_minimum(bytes: &[u8], j: usize) -> [f32; 2] {
    let [scale, minimum] = match j {
        0..4 => [bytes[j] & 63, bytes[j + 4] & 63],
        _ => [bytes[j + 4] & 15 | bytes[j - 4] >> 6 << 4, bytes[j + 4] >> 4 | bytes[j] >> 6 << 4],
    };
    [scale, minimum].map(f32::from)
}

/// `d · scale · q - dmin · minimum`, with a scale and a minimum for 32 values: `d`, `dmin`, 12 bytes of scales and
/// minima, 32 bytes for each two sub-blocks of `q`. `high` is the fifth bit of a value.
fn with_minima(block: &[u8], integers: &[u8], values: &mut [f32], high: impl Fn(usize, usize) -> u8) {
    let (d, dmin) = (half(block), half(&block[2..]));
    for (j, values) in values.chunks_mut(32).enumerate() {
        let [scale, minimum] = scale_and_minimum(&block[4..], j);
        let (scale, minimum) = (d * scale, dmin * minimum);
        for (i, value) in values.iter_mut().enumerate() {
            let low = integers[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            *value = scale * f32::from(low | high(j, i) << 4) - minimum;
        }
    }
}

fn q4_k(block: &[u8], values: &mut [f32]) {
    with_minima(block, &block[16..], values, |_, _| 0);
}

/// As Q4_K, with 32 bytes of fifth bits: bit `j` of byte `i` is that of value `i` of sub-block `j`.
fn q5_k(block: &[u8], values: &mut [f32]) {
    with_minima(block, &block[48..], values, |j, i| block[16 + i] >> j & 1);
}

/// `d · scale · (q - 32)`, with a scale for 16 values: 128 bytes of low bits of `q`, 64 bytes of its two high bits, 16
/// signed bytes of scales, `d`.
fn q6_k(block: &[u8], values: &mut [f32]) {
    let d = half(&block[208..]);
    for (i, value) in values.iter_mut().enumerate() {
        // A half of 128 values has four parts of 32.
        let (second_half, part, at) = (i / 128, i % 128 / 32, i % 32);
        let low = block[second_half * 64 + part % 2 * 32 + at] >> (part / 2 * 4) & 15;
        let high = block[128 + second_half * 32 + at] >> (part * 2) & 3;
        let scale = d * f32::from(block[192 + i / 16] as i8);
        *value = scale * (f32::from(low | high << 4) - 32.0);
    }
}
