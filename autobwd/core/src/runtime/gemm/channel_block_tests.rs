//! Sums of windows and layouts of channels in blocks have the elements of their definitions, on all instruction sets of
//! this machine.

mod layouts;

use std::{fmt::Debug, ops::Range, process::Command};

use super::{blocks::TERMS, sealed::GemmKernel, *};
use crate::{
    Result,
    runtime::{Cx, DividedMat, SubmatrixMut},
};

trait TestElement: GemmElement + Into<f64> + Debug + Default {}
impl<T: GemmElement + Into<f64> + Debug + Default> TestElement for T {}

/// Numbers between -1 and 1.
fn numbers<T: TestElement>(n: usize, seed: usize) -> Vec<T> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 20_011) as f32 / 10_005.0 - 1.0;
    (0..n).map(|i| T::from(number(i))).collect()
}

/// The fused multiply-add of the arithmetic.
fn fused<T: TestElement>(x: T, y: T, sum: T) -> T {
    GemmKernel::mul_add::<false>(x, y, sum)
}

/// A number between the bounds, or NaN.
fn bounded<T: TestElement>(x: T, [least, most]: [T; 2]) -> T {
    if x < least {
        least
    } else if x > most {
        most
    } else {
        x
    }
}

fn axis(count: usize, x: usize, other: usize) -> WindowAxis {
    WindowAxis { count, x, other }
}

/// The element of the images, or of filters, that the element of a window has, at distances `of`.
fn at(axes: &[WindowAxis], position: &[usize], of: fn(&WindowAxis) -> usize) -> usize {
    axes.iter().zip(position).map(|(axis, i)| of(axis) * i).sum()
}

/// Positions along axes, in order.
fn positions<const N: usize>(axes: [WindowAxis; N]) -> Vec<[usize; N]> {
    let counts = axes.map(|axis| axis.count);
    let position = |mut i: usize| {
        let mut position = [0; N];
        for axis in (0..N).rev() {
            position[axis] = i % counts[axis];
            i /= counts[axis];
        }
        position
    };
    (0..counts.iter().product()).map(position).collect()
}

/// Writes to a matrix with such columns.
fn written<T: TestElement>(
    out: &mut [T],
    cols: usize,
    part: [usize; 2],
    work: impl Fn(&mut SubmatrixMut<'_, T>) -> Result<()> + Sync,
) -> Result<()> {
    Cx::new(1).try_zip_submatrices_mut(
        [DividedMat { data: out, cols, part }],
        &mut [(); 0],
        |at, [mut out], _| {
            if at == [0, 0] { work(&mut out) } else { Ok(()) }
        },
    )
}

fn equal<T: TestElement>(x: T, y: T) -> bool {
    x == y || x.into().is_nan() && y.into().is_nan()
}

/// Images `[blocks, rows, columns, channels]`, and windows of them.
#[derive(Clone, Copy, Debug)]
struct Windows {
    blocks: usize,
    size: [usize; 2],
    channels: usize,
    counts: [usize; 2],
    stride: usize,
    dilation: usize,
    /// Blocks of filters.
    filters: usize,
    /// Channels of the last block.
    last_channels: usize,
    add: bool,
}

/// Windows of 3 rows and columns of a block of channels, in one row.
const SMALL: Windows = Windows {
    blocks: 1,
    size: [3, 3],
    channels: CHANNEL_BLOCK,
    counts: [1, 5],
    stride: 1,
    dilation: 1,
    filters: 1,
    last_channels: CHANNEL_BLOCK,
    add: false,
};

/// Compares with the chains of fused multiply-adds of the definition, and with sums in f64.
fn check_windows<T: TestElement>(case: Windows, has_bias: bool, bounds: [f32; 2], nan: bool) -> Result<()> {
    let Windows { blocks, size, channels, counts, stride, dilation, filters, last_channels, add } = case;
    let image = [0, 1].map(|i| (counts[i].max(1) - 1) * stride + (size[i].max(1) - 1) * dilation + 1);
    let mut x = numbers::<T>(blocks * image[0] * image[1] * channels, 1);
    if nan && let Some(x) = x.last_mut() {
        *x = T::from(f32::NAN);
    }
    let block = blocks * size[0] * size[1] * channels * CHANNEL_BLOCK;
    let filter = numbers::<T>(filters * block, 2);
    let bias = numbers::<T>(if has_bias { filters * CHANNEL_BLOCK } else { 0 }, 3);
    let row = image[1] * channels;
    let products = WindowProducts {
        x: &x,
        filters: &filter,
        block,
        bias: &bias,
        add,
        bounds: bounds.map(T::from),
        elements: [
            axis(blocks, image[0] * row, size[0] * size[1] * channels * CHANNEL_BLOCK),
            axis(size[0], dilation * row, size[1] * channels * CHANNEL_BLOCK),
            axis(size[1], dilation * channels, channels * CHANNEL_BLOCK),
        ],
        channels,
        last_channels,
        // Rows of sums have a gap.
        windows: [
            axis(counts[0], stride * row, counts[1] * CHANNEL_BLOCK + 4),
            axis(counts[1], stride * channels, CHANNEL_BLOCK),
        ],
    };
    let first = 3;
    let cols = first + counts[0] * (counts[1] * CHANNEL_BLOCK + 4) + 5;
    let before = numbers::<T>((filters + 2) * cols, 4);
    let mut expected = before.clone();
    let share = (TERMS / (size[0] * size[1] * channels).max(1)).clamp(1, blocks.max(1));
    for (f, position) in
        (0..filters).flat_map(|f| positions(products.windows).into_iter().map(move |p| (f, p)))
    {
        let start = at(&products.windows, &position, |axis| axis.x);
        for lane in 0..CHANNEL_BLOCK {
            let bias = if has_bias { bias[f * CHANNEL_BLOCK + lane] } else { T::ZERO };
            let to = (f + 1) * cols + first + at(&products.windows, &position, |axis| axis.other) + lane;
            let (mut sum, bias) = if add { (before[to], T::ZERO) } else { (T::ZERO, bias) };
            let (mut plain, mut size_of_terms) = (sum.into() + bias.into(), 0.0);
            for from in (0..blocks.max(1)).step_by(share) {
                let some = axis(share.min(blocks - from.min(blocks)), 0, 0);
                let mut chain = T::ZERO;
                for mut element in positions([some, products.elements[1], products.elements[2]]) {
                    element[0] += from;
                    let is_last = element[0] + 1 == blocks;
                    for channel in 0..if is_last { last_channels.min(channels) } else { channels } {
                        let x = x[start + at(&products.elements, &element, |axis| axis.x) + channel];
                        let of_filter = at(&products.elements, &element, |axis| axis.other);
                        let w = filter[f * block + of_filter + channel * CHANNEL_BLOCK + lane];
                        chain = fused(x, w, chain);
                        plain += x.into() * w.into();
                        size_of_terms += (x.into() * w.into()).abs();
                    }
                }
                sum = if from == 0 && !add { chain + bias } else { sum + chain };
            }
            let near = (sum.into() - plain).abs() <= 1e-5 * (1.0 + size_of_terms);
            assert!(near || plain.is_nan(), "{case:?}: {sum:?} for {plain}");
            expected[to] = bounded(sum, products.bounds);
        }
    }
    let mut out = before.clone();
    written(&mut out, cols, [filters + 2, cols], |out| products.write(out, 1..1 + filters, first))?;
    for (i, (x, y)) in out.iter().zip(&expected).enumerate() {
        assert!(equal(*x, *y), "{case:?}, {has_bias}, {bounds:?}: {x:?} for {y:?} at {i}");
    }
    Ok(())
}

const UNBOUNDED: [f32; 2] = [f32::NEG_INFINITY, f32::INFINITY];

fn check_all_windows<T: TestElement>() -> Result<()> {
    for columns in 0..=30 {
        for stride in [1, 2, 3] {
            let counts = [1 + columns % 2, columns];
            check_windows::<T>(
                Windows { counts, stride, size: [1, 2], filters: 1 + stride, ..SMALL },
                true,
                UNBOUNDED,
                false,
            )?;
        }
    }
    let cases = [
        SMALL,
        // More rows than columns.
        Windows { counts: [9, 2], ..SMALL },
        Windows { counts: [16, 1], stride: 2, filters: 3, ..SMALL },
        // One pixel, so that rows of windows follow each other.
        Windows { size: [1, 1], counts: [3, 7], ..SMALL },
        Windows { dilation: 2, filters: 2, ..SMALL },
        // Channels of their own.
        Windows { channels: 1, blocks: 3, counts: [2, 17], stride: 2, filters: 2, ..SMALL },
        Windows { channels: 5, blocks: 2, counts: [2, 4], filters: 2, ..SMALL },
        // More than 512 terms: two blocks at a time, and one with more terms.
        Windows { size: [3, 5], blocks: 5, counts: [2, 3], filters: 3, ..SMALL },
        Windows { size: [6, 6], blocks: 3, counts: [1, 2], filters: 2, ..SMALL },
        // A last block with fewer channels, of three and of one.
        Windows { last_channels: 5, blocks: 3, size: [3, 4], filters: 2, ..SMALL },
        Windows { last_channels: 1, ..SMALL },
        Windows { last_channels: 0, blocks: 2, ..SMALL },
        Windows { channels: 1, blocks: 3, ..SMALL },
        // Sums that are added.
        Windows { add: true, filters: 3, ..SMALL },
        Windows { add: true, size: [3, 5], blocks: 5, counts: [2, 3], ..SMALL },
        // Nothing to add.
        Windows { add: true, blocks: 0, ..SMALL },
        Windows { blocks: 0, filters: 2, ..SMALL },
        Windows { size: [0, 3], ..SMALL },
        Windows { filters: 0, ..SMALL },
    ];
    for case in cases {
        for has_bias in [false, true] {
            for bounds in [UNBOUNDED, [0.0, f32::INFINITY], [-0.5, 0.25]] {
                for nan in [false, true] {
                    check_windows::<T>(case, has_bias, bounds, nan)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn sums_of_windows_are_chains_of_multiplications() -> Result<()> {
    check_all_windows::<f32>()?;
    check_all_windows::<f64>()
}

/// Compares sums of rows and columns, which need not fill the last block.
fn check_rows<T: TestElement>([rows, terms, columns]: [usize; 3], add: bool, bounds: [f32; 2]) -> Result<()> {
    let (step, blocks) = (terms + 3, columns.div_ceil(CHANNEL_BLOCK));
    let x = numbers::<T>(rows * step, 1);
    let filters = numbers::<T>(blocks * terms * CHANNEL_BLOCK, 2);
    let bias = numbers::<T>(blocks * CHANNEL_BLOCK, 3);
    let single = axis(1, 0, 0);
    let products = WindowProducts {
        x: &x,
        filters: &filters,
        block: terms * CHANNEL_BLOCK,
        bias: &bias,
        add,
        bounds: bounds.map(T::from),
        elements: [single; 3],
        channels: terms,
        last_channels: terms,
        windows: [single, axis(rows, step, 0)],
    };
    let cols = columns + 5;
    let before = numbers::<T>((rows + 1) * cols, 4);
    let (mut out, mut expected) = (before.clone(), before.clone());
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        let first = column / CHANNEL_BLOCK * terms * CHANNEL_BLOCK + column % CHANNEL_BLOCK;
        let term = |sum, term| fused(x[row * step + term], filters[first + term * CHANNEL_BLOCK], sum);
        let chain = (0..terms).fold(T::ZERO, term);
        let to = row * cols + column;
        let sum = if add { before[to] + chain } else { chain + bias[column] };
        expected[to] = bounded(sum, products.bounds);
    }
    if rows > 0 {
        written(&mut out, cols, [rows, columns], |out| products.write_rows(out))?;
    }
    assert_eq!(out, expected, "{rows} rows, {terms} terms, {columns} columns, {add}, {bounds:?}");
    Ok(())
}

fn check_all_rows<T: TestElement>() -> Result<()> {
    for columns in 1..=50 {
        check_rows::<T>([columns % 4, 7, columns], columns % 2 == 1, UNBOUNDED)?;
    }
    for rows in 0..=30 {
        check_rows::<T>([rows, 5, 21], rows % 2 == 1, [-0.5, 0.25])?;
    }
    check_rows::<T>([15, 512, 20], true, [0.0, f32::INFINITY])?;
    check_rows::<T>([3, 0, 20], true, UNBOUNDED)?;
    check_rows::<T>([3, 0, 20], false, UNBOUNDED)
}

#[test]
fn rows_and_columns_that_fill_no_block_are_written() -> Result<()> {
    check_all_rows::<f32>()?;
    check_all_rows::<f64>()
}

/// Compares depthwise sums, for windows and elements of windows at such distances.
fn check_depthwise<T: TestElement>(
    elements: [WindowAxis; 2],
    windows: [WindowAxis; 2],
    bounds: [f32; 2],
    nan: bool,
) -> Result<()> {
    let reach = |axes: &[WindowAxis], of| {
        axes.iter()
            .map(|axis| axis.count.max(1) - 1)
            .zip(axes.iter().map(of))
            .map(|(n, each): (usize, usize)| n * each)
            .sum::<usize>()
    };
    let [of_x, of_other]: [fn(&WindowAxis) -> usize; 2] = [|axis| axis.x, |axis| axis.other];
    let mut x = numbers::<T>(reach(&elements, of_x) + reach(&windows, of_x) + CHANNEL_BLOCK, 1);
    if nan && let Some(x) = x.last_mut() {
        *x = T::from(f32::NAN);
    }
    let filters = numbers::<T>(reach(&elements, of_other) + CHANNEL_BLOCK, 2);
    let mut bias = [T::ZERO; CHANNEL_BLOCK];
    bias.copy_from_slice(&numbers::<T>(CHANNEL_BLOCK, 3));
    let bounds = bounds.map(T::from);
    let products = DepthwiseProducts { x: &x, filters: &filters, bias: &bias, bounds, elements, windows };
    let before = numbers::<T>(reach(&windows, of_other) + CHANNEL_BLOCK, 4);
    let (mut out, mut expected) = (before.clone(), before);
    products.write(&mut out)?;
    for position in positions(windows) {
        for lane in 0..CHANNEL_BLOCK {
            let (mut sum, mut plain) = (T::ZERO, bias[lane].into());
            for element in positions(elements) {
                let x = x[at(&windows, &position, of_x) + at(&elements, &element, of_x) + lane];
                let w = filters[at(&elements, &element, of_other) + lane];
                sum = fused(x, w, sum);
                plain += x.into() * w.into();
            }
            sum = sum + bias[lane];
            assert!((sum.into() - plain).abs() <= 1e-4 || plain.is_nan(), "{sum:?} for {plain}");
            expected[at(&windows, &position, of_other) + lane] = bounded(sum, bounds);
        }
    }
    for (i, (x, y)) in out.iter().zip(&expected).enumerate() {
        assert!(equal(*x, *y), "{elements:?}, {windows:?}, {bounds:?}: {x:?} for {y:?} at {i}");
    }
    Ok(())
}

fn check_all_depthwise<T: TestElement>() -> Result<()> {
    let block = CHANNEL_BLOCK;
    for size in [1, 2, 3, 5, 7] {
        for (step, apart) in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)] {
            for columns in 0..=30 {
                let row = 40 * block;
                let elements = [axis(size, row, size * block), axis(size, step * block, block)];
                let windows =
                    [axis(1 + columns % 2, row, columns * block), axis(columns, apart * block, block)];
                check_depthwise::<T>(elements, windows, UNBOUNDED, false)?;
            }
        }
        // Rows of filters and of sums with gaps; windows at other distances.
        for x in [0, 8, 20, 24, 40] {
            let elements = [axis(2, 500, 7 * block + 3), axis(size, block, block)];
            for (bounds, nan) in [(UNBOUNDED, true), ([0.0, f32::INFINITY], true), ([-0.5, 0.25], false)] {
                check_depthwise::<T>(
                    elements,
                    [axis(2, 600, 13 * block), axis(11, x, block + 2)],
                    bounds,
                    nan,
                )?;
            }
        }
    }
    check_depthwise::<T>(
        [axis(0, 1, 1), axis(3, block, block)],
        [axis(2, 1, 99), axis(3, block, block)],
        UNBOUNDED,
        false,
    )
}

#[test]
fn depthwise_sums_are_chains_of_multiplications() -> Result<()> {
    check_all_depthwise::<f32>()?;
    check_all_depthwise::<f64>()
}

#[test]
fn sizes_outside_of_slices_are_errors() {
    let (x, filters, bias) =
        (vec![1.0_f32; 2 * 5 * CHANNEL_BLOCK], vec![1.0; 3 * 256], vec![1.0; CHANNEL_BLOCK]);
    let bounds = UNBOUNDED;
    let fitting = WindowProducts {
        x: &x,
        filters: &filters,
        block: 256,
        bias: &bias,
        add: false,
        bounds,
        elements: [axis(1, 0, 0), axis(1, 0, 0), axis(3, 16, 256)],
        channels: 16,
        last_channels: 16,
        windows: [axis(2, 80, 48), axis(3, 16, 16)],
    };
    let run = |products: WindowProducts<'_, f32>, rows: Range<usize>, first: usize| {
        let mut out = vec![7.0; 2 * 96];
        let found = written(&mut out, 96, [2, 96], |out| products.write(out, rows.clone(), first));
        assert!(found.is_ok() || out.iter().all(|x| *x == 7.0));
        found.is_ok()
    };
    assert!(run(fitting, 0..1, 0) && run(fitting, 1..2, 0));
    let less = |products: WindowProducts<'_, f32>| assert!(!run(products, 0..1, 0), "{products:?}");
    less(WindowProducts { x: &x[1..], ..fitting });
    less(WindowProducts { filters: &filters[1..], ..fitting });
    less(WindowProducts { bias: &bias[1..], ..fitting });
    less(WindowProducts { channels: 17, ..fitting });
    let elements = |i: usize, axis: WindowAxis| {
        let mut elements = fitting.elements;
        elements[i] = axis;
        WindowProducts { elements, ..fitting }
    };
    less(elements(0, axis(2, 1, 0)));
    less(elements(1, axis(2, 0, 1)));
    less(elements(2, axis(usize::MAX, usize::MAX, 0)));
    less(elements(2, axis(2, 0, usize::MAX)));
    less(WindowProducts { windows: [axis(2, 81, 48), axis(3, 16, 16)], ..fitting });
    less(WindowProducts { windows: [axis(2, 80, 49), axis(3, 16, 16)], ..fitting });
    less(WindowProducts { windows: [axis(usize::MAX, usize::MAX, 1), axis(3, 16, 16)], ..fitting });
    assert!(!run(fitting, 0..2, 0), "filters of two blocks");
    assert!(!run(fitting, 2..3, 0), "a third row");
    assert!(!run(fitting, 0..1, 1) && !run(fitting, 0..1, usize::MAX), "sums after the row");

    // Rows of 20 columns.
    let fitting = WindowProducts {
        bias: &[1.0; 2 * CHANNEL_BLOCK],
        elements: [axis(1, 0, 0); 3],
        windows: [axis(1, 0, 0), axis(3, 70, 0)],
        channels: 20,
        last_channels: 20,
        block: 320,
        ..fitting
    };
    let run = |products: WindowProducts<'_, f32>, rows: usize| {
        let mut out = vec![7.0; 4 * 20];
        let found = written(&mut out, 20, [rows, 20], |out| products.write_rows(out));
        assert!(found.is_ok() || out.iter().all(|x| *x == 7.0));
        found.is_ok()
    };
    assert!(run(fitting, 3) && !run(fitting, 2) && !run(fitting, 4));
    for products in [
        WindowProducts { x: &x[1..], ..fitting },
        WindowProducts { filters: &filters[129..], ..fitting },
        WindowProducts { bias: &bias, ..fitting },
        WindowProducts { windows: [axis(3, 1, 0), axis(1, 70, 0)], ..fitting },
    ] {
        assert!(!run(products, 3), "{products:?}");
    }

    let bias = [1.0; CHANNEL_BLOCK];
    let fitting = DepthwiseProducts {
        x: &x,
        filters: &filters[..48],
        bias: &bias,
        bounds,
        elements: [axis(1, 0, 0), axis(3, 16, 16)],
        windows: [axis(2, 80, 48), axis(3, 16, 16)],
    };
    let run = |products: DepthwiseProducts<'_, f32>, len: usize| {
        let mut out = vec![7.0; len];
        let found = products.write(&mut out);
        assert!(found.is_ok() || out.iter().all(|x| *x == 7.0));
        found.is_ok()
    };
    assert!(run(fitting, 96) && !run(fitting, 95));
    for products in [
        DepthwiseProducts { x: &x[1..], ..fitting },
        DepthwiseProducts { filters: &filters[..47], ..fitting },
        DepthwiseProducts { elements: [axis(2, 1, 0), axis(3, 16, 16)], ..fitting },
        DepthwiseProducts { elements: [axis(2, 0, 1), axis(3, 16, 16)], ..fitting },
        DepthwiseProducts { elements: [axis(usize::MAX, usize::MAX, 0), axis(3, 16, 16)], ..fitting },
        DepthwiseProducts { windows: [axis(2, 80, usize::MAX), axis(3, 16, 16)], ..fitting },
    ] {
        assert!(!run(products, 96), "{products:?}");
    }
}

/// The other tests of this file, with fewer instructions.
#[test]
fn other_instruction_sets_pass_as_well() {
    for isa in ["avx2", "baseline"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let command = command.args(["gemm::channel_block_tests", "--skip", "other_instruction_sets"]);
        let output = command.env("AUTOBWD_ISA", isa).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("5 passed"), "{isa}: {text}");
    }
}
