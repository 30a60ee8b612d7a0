//! Matrix product with quantised weights.

use autobwd::{
    Buf, Composition, Cx, DType, Expr, GradCx, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::{Levels, Mat, QuantizedMat, with_float},
    register_op,
    tensor::{Dim, OptionalBuf},
};

use crate::{
    Math,
    fill::constants,
    math::{in_dtype, sizes},
    stack,
};

autobwd::op::attr_enum! {
    /// What the codes of quantised weights stand for before they are scaled: levels.
    pub enum QuantizedKind {
        /// 8 bits: the code minus its zero point, or minus 128.
        Int8 = "int8",
        /// 4 bits: the code minus its zero point, or minus 8.
        Int4 = "int4",
        /// 4 bits: quantiles of a normal distribution between −1 and 1, as of [QLoRA](https://arxiv.org/abs/2305.14314)
        /// and bitsandbytes.
        Nf4 = "nf4",
    }
}

/// The levels of [`QuantizedKind::Nf4`].
pub(crate) const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_96,
    1.0,
];

impl QuantizedKind {
    /// Rows of a column whose codes share a cell of four bytes.
    pub(crate) fn rows_of_cell(self) -> usize {
        if self == QuantizedKind::Int8 { 4 } else { 8 }
    }

    /// What is subtracted from codes without zero points.
    pub(crate) fn middle(self) -> u8 {
        if self == QuantizedKind::Int8 { 128 } else { 8 }
    }
}

/// Matrix product with quantised weights: `out = x · w`, with `w = level · scale`, rounded once.
///
/// `group_size` rows of a column of `w` have a common scale, and a common zero point if there are any. The product
/// computes parts of `w` where it reads them, so that `w` is nowhere in memory. Codes have no gradient; `dx = dout · wᵀ`,
/// and `dscale` is the gradient of the composition.
#[register_op(grad = gradient, infallible)]
pub struct QuantizedMatmul<V = Var> {
    /// Left factor, `[.., k]`; `[.., n]` if `trans_y`.
    #[input]
    pub x: V,
    /// uint8, `[c, n, 4]`: the codes of `w`, `[k, n]`. A cell of four bytes has the codes of 4 rows of a column (int8) or
    /// of 8 (4 bits), lower bits first.
    #[input]
    pub codes: V,
    /// `[g, n]`, a row for each group of rows.
    #[input]
    pub scale: V,
    /// uint8, `[g, n]`: the codes of the number 0.
    #[input]
    pub zero_point: Option<V>,
    /// `[.., n]`; `[.., k]` if `trans_y`.
    #[output]
    pub out: V,
    /// What the codes stand for.
    #[attr]
    pub kind: QuantizedKind,
    /// Rows that have a common scale; the last ones may be fewer.
    #[attr(default = 32, min = 1)]
    pub group_size: i32,
    /// Whether `x` is multiplied by the transpose of `w`.
    #[attr(default = false)]
    pub trans_y: bool,
}
impl Infer for QuantizedMatmul<Meta> {
    fn infer(&mut self) -> Result<()> {
        let QuantizedMatmul { x, codes, scale, zero_point, .. } = &self;
        x.float()?;
        let &[cells, n, bytes] = &codes.dims[..] else {
            return Err(codes.wrong("cells of four bytes are needed, [c, n, 4]"));
        };
        let are_cells = codes.dtype == DType::U8 && bytes.agrees(Dim::from(4));
        codes.require(are_cells, || "cells of four bytes are needed, uint8 [c, n, 4]".into())?;
        let (per_cell, group) = (self.kind.rows_of_cell(), self.group_size as usize);
        codes.require(group.is_multiple_of(per_cell), || {
            format!(
                "attribute `group_size`: a multiple of the {per_cell} rows of a cell is needed, not {group}"
            )
        })?;
        let k = cells * Dim::from(per_cell);
        let groups = k.get().map_or(Dim::UNKNOWN, |k| Dim::from(k.div_ceil(group)));
        let is_row_a_group = |meta: &Meta| matches!(&meta.dims[..], [own_groups, own_n] if own_groups.agrees(groups) && own_n.agrees(n));
        let needed = || format!("[{groups}, {n}] is needed, a row for each group of {group} rows");
        scale.float()?;
        scale.require(is_row_a_group(scale), needed)?;
        let same_family = scale.dtype.arithmetic() == x.dtype.arithmetic();
        scale.require(same_family, || format!("{} is needed, as `X` has", x.dtype.arithmetic()))?;
        if let Some(zero_point) = zero_point {
            zero_point.require(self.kind != QuantizedKind::Nf4, || "nf4 has no zero points".into())?;
            zero_point.require(zero_point.dtype == DType::U8, || "uint8 is needed".into())?;
            zero_point.require(is_row_a_group(zero_point), needed)?;
        }
        let (inner, outer) = if self.trans_y { (n, k) } else { (k, n) };
        let Some((last, batch)) = x.dims.split_last() else { return Err(x.wrong("one dimension is needed")) };
        x.require(last.agrees(inner), || format!("a last dimension of {inner} is needed"))?;
        self.out.set(x.dtype, batch.iter().copied().chain([outer]).collect::<autobwd::Dims>());
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.x.dims.numel() * self.out.dims.last().copied().unwrap_or(Dim::UNKNOWN)
    }
}
impl Kernel for QuantizedMatmul<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let &[cells, cols, _] = self.codes.dims() else { return Err(self.codes.wrong("cells are needed")) };
        let inner = self.x.dims().last().copied().unwrap_or(1);
        with_float!(self.x, T => {
            let (x, zero_points) = (self.x.slice::<T>()?, self.zero_point.slice()?);
            let nf4 = NF4.map(T::from);
            let levels = match self.kind {
                QuantizedKind::Int8 => Levels::Bytes,
                QuantizedKind::Int4 => Levels::Nibbles,
                QuantizedKind::Nf4 => Levels::Table(&nf4),
            };
            let y = QuantizedMat {
                rows: cells * self.kind.rows_of_cell(),
                cols,
                codes: self.codes.slice()?,
                levels,
                group: self.group_size as usize,
                scales: self.scale.slice()?,
                zero_points,
                transposed: self.trans_y,
            };
            let out = self.out.slice_mut()?;
            if out.is_empty() {
                return Ok(());
            }
            let rows = out.len() / y.shape().1;
            cx.product_quantized(out, Mat { data: x, rows, cols: inner, transposed: false }, y)
        })
    }
}
impl Composition for QuantizedMatmul<Expr> {
    fn compose(&mut self) {
        let dtype = self.scale.dtype().arithmetic();
        let codes = self.codes.cast(dtype);
        // Row after row: [c, n, 4] or [c, n, 4, 2] with codes of a byte next to each other.
        let codes = match self.kind {
            QuantizedKind::Int8 => codes.transpose(&[0, 2, 1]).flatten(0, 1),
            _ => {
                let high = (&codes * (1.0 / 16.0)).floor();
                let low = &codes - &high * 16.0;
                stack(&[&low, &high], 3).transpose(&[0, 2, 3, 1]).flatten(0, 2)
            }
        };
        let [rows, columns] = sizes(&codes);
        let of_rows = |groups: &Expr| {
            let spread = groups.unsqueeze(&[1]).expand(&[-1, self.group_size, -1]).flatten(0, 1);
            spread.slice_to(0, &0.into(), &rows)
        };
        let levels = match (self.kind, &self.zero_point) {
            (QuantizedKind::Nf4, _) => {
                let places = codes.cast(DType::I64);
                let levels = constants(&codes, &NF4.map(f64::from));
                levels.gather(&places.flatten(0, 1), 0).reshape_to(&[rows.clone(), columns])
            }
            (_, Some(zero_point)) => codes - of_rows(&zero_point.cast(dtype)),
            (kind, None) => codes - f64::from(kind.middle()),
        };
        let w = levels * of_rows(&in_dtype(&self.scale, dtype));
        let out = super::v2::product([&in_dtype(&self.x, dtype), &w], [false, self.trans_y]);
        self.out = in_dtype(&out, self.x.dtype());
    }
}

autobwd::samples!(
    QuantizedMatmul,
    [
        int8(uniform([3, 8]), [2, 5], 4),
        int8(uniform([2, 1, 12]), [3, 5], 8),
        int8(uniform([8]), [2, 5], 100),
        QuantizedMatmul { zero_point: zero_points([2, 5]), ..int8(uniform([3, 8]), [2, 5], 4) },
        QuantizedMatmul { trans_y: true, ..int8(uniform([3, 5]), [2, 5], 4) },
        int4(uniform([3, 16]), [2, 5], 8),
        QuantizedMatmul { zero_point: zero_points([2, 5]), ..int4(uniform([3, 16]), [2, 5], 8) },
        QuantizedMatmul {
            trans_y: true,
            zero_point: zero_points([1, 5]),
            ..int4(uniform([2, 5]), [2, 5], 16)
        },
        QuantizedMatmul { kind: QuantizedKind::Nf4, ..int4(uniform([2, 2, 24]), [3, 5], 16) },
        QuantizedMatmul { kind: QuantizedKind::Nf4, trans_y: true, ..int4(uniform([9, 5]), [2, 5], 16) },
        int8(uniform([3, 32]), [8, 5], 16),
        QuantizedMatmul { zero_point: zero_points([2, 5]), ..int4(uniform([3, 32]), [4, 5], 16) },
        int8(uniform([0, 8]), [2, 5], 4),
        int8(uniform([2, 0]), [0, 5], 4),
        int4(uniform([3, 16]), [2, 5], 12)
            .fails("attribute `group_size`: a multiple of the 8 rows of a cell is needed, not 12"),
        int8(uniform([3, 7]), [2, 5], 4).fails("`X`: a last dimension of 8 is needed"),
        QuantizedMatmul { scale: uniform([1, 5]), ..int8(uniform([3, 8]), [2, 5], 4) }
            .fails("`Scale`: [2, 5] is needed, a row for each group of 4 rows"),
        QuantizedMatmul { codes: integers_below(256, [2, 5, 4]), ..int8(uniform([3, 8]), [2, 5], 4) }
            .fails("`Codes`: cells of four bytes are needed, uint8 [c, n, 4]"),
        QuantizedMatmul {
            kind: QuantizedKind::Nf4,
            zero_point: zero_points([2, 5]),
            ..int4(uniform([3, 16]), [2, 5], 8)
        }
        .fails("`ZeroPoint`: nf4 has no zero points"),
    ]
);

fn int8(x: Draw, [cells, n]: [usize; 2], group_size: i32) -> QuantizedMatmul<Draw> {
    let kind = QuantizedKind::Int8;
    let groups = (4 * cells).div_ceil(group_size as usize);
    QuantizedMatmul {
        x,
        codes: integers_below(256, [cells, n, 4]).of(DType::U8),
        scale: uniform([groups, n]),
        zero_point: None,
        out: out(),
        kind,
        group_size,
        trans_y: false,
    }
}

fn int4(x: Draw, [cells, n]: [usize; 2], group_size: i32) -> QuantizedMatmul<Draw> {
    let groups = (8 * cells).div_ceil(group_size as usize);
    QuantizedMatmul {
        kind: QuantizedKind::Int4,
        scale: uniform([groups, n]),
        ..int8(x, [cells, n], group_size)
    }
}

fn zero_points(dims: [usize; 2]) -> Option<Draw> {
    Some(integers_below(16, dims).of(DType::U8))
}

fn gradient(fwd: &QuantizedMatmul, g: &mut GradCx<'_>) {
    let dout = g.grad(fwd.out);
    if let Some(dx) = g.wanted(fwd.x) {
        let QuantizedMatmul { codes, scale, zero_point, kind, group_size, trans_y, .. } = *fwd;
        let trans_y = !trans_y;
        g.push(QuantizedMatmul { x: dout, codes, scale, zero_point, out: dx, kind, group_size, trans_y });
    }
    g.compose(&["Out"], &["Scale"]);
}
