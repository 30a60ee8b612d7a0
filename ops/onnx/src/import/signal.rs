//! Discrete Fourier transforms and windows.

use std::f64::consts::PI;

use autobwd::{Expr, New, Result, Tensor, emit};
use autobwd_ops::{
    Math, concat,
    fourier::{FftC2c, FftC2r, FftNormalization, FftR2c},
};

use super::{
    arith::{check_table, filled_like, reshape},
    node::{NodeContext, NodeOutput, Outputs, one, refuse},
    pad::pad_constant,
    rules::{Native, NodeRules},
    slice::slice_axis,
};
use crate::elements::ElementType;

pub(super) const RULES: NodeRules = &[
    ("DFT", Native, transform),
    ("STFT", Native, short_time),
    ("HannWindow", Native, |n| window(n, &[0.5, -0.5])),
    ("HammingWindow", Native, |n| window(n, &[25.0 / 46.0, -21.0 / 46.0])),
    ("BlackmanWindow", Native, |n| window(n, &[0.42, -0.5, 0.08])),
    ("MelWeightMatrix", Native, mel_weights),
];

/// The longest windows.
const LENGTH: i64 = 1 << 12;

/// The longest transforms.
const TRANSFORM: i64 = 1 << 24;

/// A transform along an axis of complex numbers.
fn complex(x: &Expr, axis: usize, forward: bool) -> Expr {
    let (axes, normalization) = (vec![axis as i64], FftNormalization::Backward);
    emit(FftC2c { x: x.into(), out: New, axes, normalization, forward }).out
}

/// A transform along an axis of real numbers.
fn real(x: &Expr, axis: usize, forward: bool, onesided: bool) -> Expr {
    let (axes, normalization) = (vec![axis as i64], FftNormalization::Backward);
    emit(FftR2c { x: x.into(), out: New, axes, normalization, forward, onesided }).out
}

fn transform(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (inverse, onesided) = (n.flag("inverse", false)?, n.flag("onesided", false)?);
    let axis = match n.version() {
        ..20 => n.int_or("axis", 1)?,
        _ => n.constant_ints(2)?.and_then(|axis| axis.first().copied()).unwrap_or(-2),
    };
    let axis = n.axis(0, axis)?;
    let dims = n.known_dims(0)?;
    let components = dims.last().copied().unwrap_or(0);
    if axis + 1 == dims.len() || !(1..=2).contains(&components) {
        return Err(refuse("operator `DFT` needs an axis before the axis of real and imaginary parts"));
    }
    let own = dims[axis] as i64;
    let default = if inverse && onesided { 2 * (own - 1) } else { own };
    let length = n.constant_ints(1)?.and_then(|length| length.first().copied()).unwrap_or(default);
    if !(1..=TRANSFORM).contains(&length) {
        return Err(refuse(format!("operator `DFT` of length {length} is not supported")));
    }
    // Signals are cut or padded to the length.
    let half = length / 2 + 1;
    let count = if inverse && onesided { half } else { length };
    let x = pad_constant(&n.input(0)?, &[(axis, 0, count - own)], 0.0)?;
    one(match components {
        _ if inverse && onesided => {
            let pairs = if components == 2 { x } else { concat(&[&x, &filled_like(&x, 0.0, x.dtype())], -1) };
            let (axes, normalization) = (vec![axis as i64], FftNormalization::Backward);
            let (x, last_dim_size) = ((&pairs).into(), length);
            let op = FftC2r { x, out: New, axes, normalization, forward: false, last_dim_size };
            emit(op).out.unsqueeze(&[-1])
        }
        1 => real(&x.squeeze(&[-1]), axis, !inverse, onesided),
        _ if onesided => slice_axis(&complex(&x, axis, true), axis, 0, half),
        _ => complex(&x, axis, !inverse),
    })
}

/// Transforms of overlapping frames.
fn short_time(n: &mut NodeContext<'_, '_>) -> Outputs {
    let onesided = n.flag("onesided", true)?;
    let step = n.constant_ints(1)?.and_then(|step| step.first().copied()).unwrap_or(0);
    let window = n.optional(2)?;
    let dims = n.known_dims(0)?;
    let given = n.constant_ints(3)?.and_then(|length| length.first().copied());
    let own = window.as_ref().and_then(|window| window.dims().numel().get()).map(|n| n as i64);
    let length = given.or(own).unwrap_or(0);
    let [_, samples, 1] = dims[..] else {
        return Err(refuse("operator `STFT` of complex signals is not supported"));
    };
    if step < 1 || length < 1 || length > samples as i64 {
        return Err(refuse(format!(
            "operator `STFT` with windows of {length} elements in steps of {step} is not supported"
        )));
    }
    let frames = (samples as i64 - length) / step + 1;
    check_table([frames, length].map(|dim| dim as usize))?;
    let x = n.input(0)?.squeeze(&[2]);
    let places: Vec<i64> = (0..frames).flat_map(|frame| (0..length).map(move |i| frame * step + i)).collect();
    let places = n.ints_expr(&places)?;
    let mut framed = reshape(&x.index_select(&places, 1), &[-1, frames, length]);
    if let Some(window) = window {
        framed = &framed * &window;
    }
    one(real(&framed, 2, true, onesided))
}

/// A sum of cosines: `Σ factors[k] · cos(2πk · i / n)`.
fn window(n: &mut NodeContext<'_, '_>, factors: &[f64]) -> Outputs {
    let element = output_type(n)?;
    let periodic = n.flag("periodic", true)?;
    let size = n.constant_ints(0)?.and_then(|size| size.first().copied()).unwrap_or(0);
    if !(0..=LENGTH * 16).contains(&size) {
        return Err(refuse(format!("operator `{}` of size {size} is not supported", n.op())));
    }
    let period = if periodic { size } else { (size - 1).max(1) } as f64;
    let term = |i: i64, k: usize| factors[k] * libm::cos(2.0 * PI * k as f64 * i as f64 / period);
    let elements = (0..size).map(|i| (0..factors.len()).map(|k| term(i, k)).sum::<f64>()).collect();
    known(n, element, [size as usize].to_vec(), elements)
}

fn output_type(n: &mut NodeContext<'_, '_>) -> Result<ElementType> {
    let code = n.int_or("output_datatype", 1)?;
    let element = i32::try_from(code).ok().and_then(ElementType::from_code);
    let element =
        element.ok_or_else(|| refuse(format!("attribute `output_datatype` = {code} is not supported")))?;
    n.set_type(0, element);
    Ok(element)
}

fn known(n: &NodeContext<'_, '_>, element: ElementType, dims: Vec<usize>, elements: Vec<f64>) -> Outputs {
    let dtype = n.dtype(element)?;
    if !dtype.is_float() {
        return Err(refuse(format!("operator `{}` with results of {dtype} is not supported", n.op())));
    }
    Ok(vec![NodeOutput::Known(Tensor::from_f64s(dtype, dims, &elements)?)])
}

/// Triangular filters whose centres are evenly spaced in mel.
fn mel_weights(n: &mut NodeContext<'_, '_>) -> Outputs {
    let element = output_type(n)?;
    let int =
        |i: usize| Ok::<_, autobwd::Error>(n.constant_ints(i)?.and_then(|x| x.first().copied()).unwrap_or(0));
    let (bins, length, rate) = (int(0)?, int(1)?, int(2)?);
    let edge = |i: usize| {
        Ok::<_, autobwd::Error>(n.constant_floats(i)?.and_then(|x| x.first().copied()).unwrap_or(0.0))
    };
    let (low, high) = (edge(3)?, edge(4)?);
    if !(1..=LENGTH).contains(&bins) || !(1..=LENGTH).contains(&length) || rate < 1 {
        return Err(refuse(format!(
            "operator `MelWeightMatrix` of {bins} bins and length {length} is not supported"
        )));
    }
    let rows = length / 2 + 1;
    let mel = |hertz: f64| 2595.0 * libm::log10(1.0 + hertz / 700.0);
    let (low, high) = (mel(low), mel(high));
    let step = (high - low) / (bins + 2) as f64;
    let place = |i: i64| {
        let hertz = 700.0 * (libm::pow(10.0, (i as f64 * step + low) / 2595.0) - 1.0);
        let at = ((length + 1) as f64 * hertz / rate as f64).floor();
        at.clamp(-1e9, 1e9) as i64
    };
    let mut elements = vec![0.0; (rows * bins) as usize];
    let mut set = |row: i64, bin: i64, value: f64| {
        if (0..rows).contains(&row) {
            elements[(row * bins + bin) as usize] = value;
        }
    };
    for bin in 0..bins {
        let (left, centre, right) = (place(bin), place(bin + 1), place(bin + 2));
        let limit = |at: i64| at.clamp(-1, rows);
        match centre - left {
            0 => set(centre, bin, 1.0),
            rise => (limit(left)..limit(centre + 1))
                .for_each(|row| set(row, bin, (row - left) as f64 / rise as f64)),
        }
        if right > centre {
            let fall = (right - centre) as f64;
            (limit(centre)..limit(right)).for_each(|row| set(row, bin, (right - row) as f64 / fall));
        }
    }
    known(n, element, vec![rows as usize, bins as usize], elements)
}
