//! One step of a gated recurrent unit.

use autobwd::{
    Composed, Composition, Dims, Expr, Infer, Meta, Result, Var, check::*, register_op, tensor::Dim,
};

use crate::{Math, concat};

/// One step of a gated recurrent unit (Cho et al., 2014): with `u, r, c` for the three parts of `input + bias`,
/// `u = gate_activation(u + h · a)`, `r = gate_activation(r + h · b)`, `c = activation(c + (r * h) · w)`, and
/// `hidden = h + u * (c - h)`, or `hidden = c + u * (h - c)` if `origin_mode`.
///
/// The memory of `weight` has `[a, b]` as a matrix of `2d` columns, then `w` as a matrix of `d` columns. Functions are numbers: 0 is
/// the identity, 1 `sigmoid`, 2 `tanh`, 3 `relu`.
#[register_op(grad = Composed, composed)]
pub struct GruUnit<V = Var> {
    /// Projections of the input, `[n, 3d]`.
    #[input]
    pub input: V,
    /// The hidden state `h`, `[n, d]`.
    #[input]
    pub hidden_prev: V,
    /// `[d, 3d]`
    #[input]
    pub weight: V,
    /// `[1, 3d]`
    #[input]
    pub bias: Option<V>,
    /// `u`, `r` and `c`, `[n, 3d]`.
    #[output]
    pub gate: V,
    /// `r * h`, `[n, d]`.
    #[output]
    pub reset_hidden_prev: V,
    /// `[n, d]`
    #[output]
    pub hidden: V,
    /// The function of `c`.
    #[attr(default = 2, min = 0, max = 3)]
    pub activation: i32,
    /// The function of `u` and `r`.
    #[attr(default = 1, min = 0, max = 3)]
    pub gate_activation: i32,
    /// Whether `u` is the share of the former state, in place of the share of `c`.
    #[attr(default = false)]
    pub origin_mode: bool,
}
impl Infer for GruUnit<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.input.float()?;
        let others = [Some(&self.hidden_prev), Some(&self.weight), self.bias.as_ref()];
        others.into_iter().flatten().try_for_each(|x| x.same_dtype(&self.input))?;
        let [n, d] = self.hidden_prev.dims[..] else {
            return Err(self.hidden_prev.wrong("a matrix is needed"));
        };
        let n = n.or(self.input.dims.first().copied().unwrap_or(n));
        let wide = d.get().map_or(Dim::UNKNOWN, |d| d.saturating_mul(3).into());
        let shapes = [
            (Some(&self.input), [n, wide]),
            (Some(&self.weight), [d, wide]),
            (self.bias.as_ref(), [1.into(), wide]),
        ];
        for (x, shape) in shapes {
            let shape = Dims::from_iter(shape);
            x.map_or(Ok(()), |x| {
                x.require(x.dims.agrees(&shape), || format!("dimensions {shape} are needed"))
            })?;
        }
        self.gate.set(self.input.dtype, Dims::from_iter([n, wide]));
        self.reset_hidden_prev.set(self.input.dtype, Dims::from_iter([n, d]));
        self.hidden.set(self.input.dtype, Dims::from_iter([n, d]));
        Ok(())
    }
}
impl Composition for GruUnit<Expr> {
    fn compose(&mut self) {
        let (h, d) = (&self.hidden_prev, self.hidden_prev.dim(1));
        let (two, three) = (&d * 2, &d * 3);
        let weights = self.weight.flatten(0, 1);
        let of_gates = weights.slice_to(0, &0.into(), &(&two * &d)).reshape_to(&[d.clone(), two.clone()]);
        let of_state = weights.slice_to(0, &(&two * &d), &(&three * &d)).reshape_to(&[d.clone(), d.clone()]);
        let x = self.bias.as_ref().map_or(self.input.clone(), |bias| &self.input + bias);
        let gates = x.slice_to(1, &0.into(), &two) + h.matmul(&of_gates);
        let gates = activated(&gates, self.gate_activation);
        let (u, r) = (gates.slice_to(1, &0.into(), &d), gates.slice_to(1, &d, &two));
        let reset = r * h;
        let c = activated(&(x.slice_to(1, &two, &three) + reset.matmul(&of_state)), self.activation);
        self.hidden = if self.origin_mode { &c + u * (h - &c) } else { h + u * (&c - h) };
        self.gate = concat(&[&gates, &c], 1);
        self.reset_hidden_prev = reset;
    }
}
autobwd::samples!(
    GruUnit,
    [
        gru_unit(3, 2, Some(uniform([1, 6]))),
        GruUnit { origin_mode: true, ..gru_unit(2, 3, None) },
        GruUnit { activation: 1, gate_activation: 2, ..gru_unit(2, 1, Some(uniform([1, 3]))) },
        GruUnit { activation: 0, gate_activation: 0, ..gru_unit(1, 2, None) },
        GruUnit {
            activation: 3,
            gate_activation: 3,
            input: given([1, 6], [0.5, -2.5, 1.5, 2.5, -0.5, 3.5]),
            hidden_prev: between(-0.1, 0.1, [1, 2]),
            ..gru_unit(1, 2, None)
        },
        gru_unit(0, 2, None),
        gru_unit(2, 0, Some(uniform([1, 0]))),
        GruUnit { input: uniform([3, 5]), ..gru_unit(3, 2, None) }
            .fails("`Input`: dimensions [3, 6] are needed"),
        GruUnit { weight: uniform([3, 6]), ..gru_unit(3, 2, None) }
            .fails("`Weight`: dimensions [2, 6] are needed"),
        GruUnit { hidden_prev: uniform([2]), ..gru_unit(3, 2, None) }
            .fails("`HiddenPrev`: a matrix is needed"),
        gru_unit(3, 2, Some(uniform([6]))).fails("`Bias`: dimensions [1, 6] are needed"),
        gru_unit(3, 2, Some(integers_below(2, [1, 6]))).fails("`Bias`: dtype int64 does not match"),
        GruUnit { input: integers_below(2, [3, 6]), ..gru_unit(3, 2, None) }
            .fails("`Input`: floating point numbers are needed"),
        GruUnit { activation: 4, ..gru_unit(3, 2, None) }.fails("attribute `activation`"),
        GruUnit { gate_activation: -1, ..gru_unit(3, 2, None) }.fails("attribute `gate_activation`"),
    ]
);

fn gru_unit(n: usize, d: usize, bias: Option<Draw>) -> GruUnit<Draw> {
    GruUnit {
        input: uniform([n, 3 * d]),
        hidden_prev: uniform([n, d]),
        weight: uniform([d, 3 * d]),
        bias,
        gate: out(),
        reset_hidden_prev: out(),
        hidden: out(),
        activation: 2,
        gate_activation: 1,
        origin_mode: false,
    }
}

fn activated(x: &Expr, function: i32) -> Expr {
    match function {
        1 => x.sigmoid(),
        2 => x.tanh(),
        3 => x.relu(),
        _ => x.clone(),
    }
}
