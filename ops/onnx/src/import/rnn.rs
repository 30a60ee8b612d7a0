//! Recurrent layers: `RNN`, `GRU`, `LSTM`.

use std::ops::Range;

use autobwd::{DType, Expr, New, Result, Tensor, emit, tensor::Element};
use autobwd_ops::{
    Math, concat,
    fill::{FillConstant, FillConstantBatchSizeLike},
    rnn::{RnnAttrs, RnnLayers, RnnMode},
};

use super::{
    arith::{dim_of, int_like, narrow_int, permute, reshape},
    matmul::product,
    node::{NodeContext, NodeOutput, Outputs, refuse},
    rules::{Native, NodeRules},
    slice::slice_axis,
};

pub(super) const RULES: NodeRules = &[
    ("RNN", Native, |n| recurrent(n, Kind::Simple)),
    ("GRU", Native, |n| recurrent(n, Kind::Gru)),
    ("LSTM", Native, |n| recurrent(n, Kind::Lstm)),
];

/// The most steps that are written one after another.
const STEPS: i64 = 1024;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Simple,
    Gru,
    Lstm,
}

impl Kind {
    /// The gates in the order of the library, by their positions in ONNX.
    fn gates(self) -> &'static [i64] {
        match self {
            Kind::Simple => &[0],
            Kind::Gru => &[1, 0, 2],
            Kind::Lstm => &[0, 2, 3, 1],
        }
    }

    fn default_activations(self) -> &'static [&'static str] {
        match self {
            Kind::Simple => &["tanh"],
            Kind::Gru => &["sigmoid", "tanh"],
            Kind::Lstm => &["sigmoid", "tanh", "tanh"],
        }
    }
}

/// What a layer reads, with time first.
struct Layer {
    kind: Kind,
    units: i64,
    x: Expr,
    lengths: Option<Expr>,
    hidden: Expr,
    cell: Option<Expr>,
    peepholes: Option<Expr>,
    clip: Option<f32>,
    /// Of all directions.
    activations: Vec<String>,
    /// Whether the reset gate is applied behind the product.
    reset_behind: bool,
    /// Whether input and forget gates are coupled.
    coupled: bool,
}

fn recurrent(n: &mut NodeContext<'_, '_>, kind: Kind) -> Outputs {
    let units = n.int("hidden_size")?.filter(|units| (1..1 << 24).contains(units));
    let units = units.ok_or_else(|| {
        refuse(format!("attribute `hidden_size` of operator `{}` is missing or invalid", n.op()))
    })?;
    let backwards = match n.text_or("direction", "forward")? {
        "forward" => vec![false],
        "reverse" => vec![true],
        "bidirectional" => vec![false, true],
        other => {
            return Err(refuse(format!(
                "attribute `direction` = `{other}` of operator `{}` is not supported",
                n.op()
            )));
        }
    };
    if n.has_attribute("activation_alpha") || n.has_attribute("activation_beta") {
        return Err(refuse(format!(
            "attribute `activation_alpha` of operator `{}` is not supported",
            n.op()
        )));
    }
    let batch_first = n.flag("layout", false)?;
    let swapped = |x: Expr| if batch_first { permute(&x, &[1, 0, 2]) } else { x };
    let x = swapped(n.input(0)?);
    let count = backwards.len() as i64;
    let state = |n: &mut NodeContext<'_, '_>, i: usize| -> Result<Expr> {
        Ok(n.optional(i)?.map_or_else(|| initial(&x, count, units), swapped))
    };
    let hidden = state(n, 5)?;
    let cell = if kind == Kind::Lstm { Some(state(n, 6)?) } else { None };
    let activations = match n.texts("activations")? {
        Some(names) => names.iter().map(|name| name.to_lowercase()).collect(),
        None => {
            backwards.iter().flat_map(|_| kind.default_activations()).map(|name| name.to_string()).collect()
        }
    };
    let layer = Layer {
        kind,
        units,
        lengths: n.optional(4)?,
        peepholes: if kind == Kind::Lstm { n.optional(7)? } else { None },
        clip: n.float("clip")?,
        reset_behind: kind == Kind::Gru && n.flag("linear_before_reset", false)?,
        coupled: kind == Kind::Lstm && n.flag("input_forget", false)?,
        activations,
        x,
        hidden,
        cell,
    };
    let [y, hidden, cell] = match layer.is_plain(&backwards) {
        true => layer.library(n, &backwards)?,
        false => layer.unrolled(n, &backwards)?,
    };
    // `[steps, directions, batch, units]`
    let y = if batch_first { permute(&y, &[2, 0, 1, 3]) } else { y };
    let [hidden, cell] = [hidden, cell].map(swapped);
    let states = if kind == Kind::Lstm { vec![y, hidden, cell] } else { vec![y, hidden] };
    Ok(states.into_iter().take(n.output_count()).map(NodeOutput::Expr).collect())
}

/// The part of a direction.
fn part_of(x: &Expr, direction: usize) -> Expr {
    slice_axis(x, 0, direction as i64, direction as i64 + 1).squeeze(&[0])
}

/// Rows of a direction: `count` from each start on; `None` if it has fewer.
fn rows(
    x: &Tensor,
    direction: usize,
    starts: impl Iterator<Item = usize>,
    count: usize,
) -> Result<Option<Tensor>> {
    fn select<T: Element>(x: &Tensor, ranges: &[Range<usize>], dims: &[usize]) -> Result<Option<Tensor>> {
        let elements = x.slice::<T>()?;
        let parts: Option<Vec<&[T]>> = ranges.iter().map(|range| elements.get(range.clone())).collect();
        parts.map(|parts| Tensor::from_vec(dims, parts.concat())).transpose()
    }
    let &[directions, all, ref inner @ ..] = x.dims() else { return Ok(None) };
    let (starts, width): (Vec<usize>, usize) = (starts.collect(), inner.iter().product());
    if direction >= directions || starts.iter().any(|start| start + count > all) {
        return Ok(None);
    }
    let range = |start: &usize| {
        let first = (direction * all + start) * width;
        first..first + count * width
    };
    let ranges: Vec<Range<usize>> = starts.iter().map(range).collect();
    let dims: Vec<usize> = [starts.len() * count].iter().chain(inner).copied().collect();
    match x.dtype() {
        DType::F32 => select::<f32>(x, &ranges, &dims),
        DType::F64 => select::<f64>(x, &ranges, &dims),
        _ => Ok(None),
    }
}

/// Zeros of shape `[directions, batch, units]`.
fn initial(x: &Expr, directions: i64, units: i64) -> Expr {
    let op = FillConstantBatchSizeLike {
        input: x.into(),
        out: New,
        shape: vec![directions as i32, -1, units.min(i32::MAX.into()) as i32],
        input_dim_idx: 1,
        output_dim_idx: 1,
        dtype: x.dtype(),
        value: 0.0,
        str_value: String::new(),
    };
    emit(op).out
}

impl Layer {
    /// Whether the library has such layers.
    fn is_plain(&self, backwards: &[bool]) -> bool {
        let defaults = self.kind.default_activations().iter().cycle();
        let mut usual = self.activations.iter().zip(defaults).all(|(own, default)| own == default);
        usual |= self.kind == Kind::Simple && self.activations.iter().all(|name| name == "relu");
        let ordered = backwards != [true] || self.lengths.is_none();
        let reset = self.kind != Kind::Gru || self.reset_behind;
        usual && ordered && reset && !self.coupled && self.clip.is_none() && self.peepholes.is_none()
    }

    /// The weights and then the biases of the library, for each direction.
    fn parameters(&self, n: &mut NodeContext<'_, '_>, directions: usize) -> Result<Vec<Expr>> {
        let rows = self.units * self.kind.gates().len() as i64;
        let (mut weights, mut biases) = (vec![], vec![]);
        for direction in 0..directions {
            for i in [1, 2] {
                weights.push(self.gates(n, i, direction, 0)?);
            }
            for first in [0, rows] {
                biases.push(match n.has(3) {
                    true => self.gates(n, 3, direction, first)?,
                    false => {
                        let (shape, dtype) = (vec![rows], self.x.dtype());
                        n.net().emit(FillConstant { shape, dtype, ..FillConstant::of(New) }).out
                    }
                });
            }
        }
        weights.append(&mut biases);
        Ok(weights)
    }

    /// The rows of input `i` for a direction, from row `first` on, with the gates in the order of the library.
    fn gates(&self, n: &mut NodeContext<'_, '_>, i: usize, direction: usize, first: i64) -> Result<Expr> {
        let gates = self.kind.gates();
        if let Some(weight) = n.private_weight(i) {
            let starts = gates.iter().map(|gate| (first + gate * self.units) as usize);
            if let Some(moved) = rows(&weight, direction, starts, self.units as usize)? {
                return n.moved_weight(i, moved);
            }
        }
        let x = part_of(&n.input(i)?, direction);
        let gate = |gate: &i64| {
            let start = first + gate * self.units;
            slice_axis(&x, 0, start, start + self.units)
        };
        let gates: Vec<Expr> = gates.iter().map(gate).collect();
        Ok(match &gates[..] {
            [gate] => gate.clone(),
            _ => concat(&gates.iter().collect::<Vec<_>>(), 0),
        })
    }

    /// Outputs of all steps, and the last states, by the operator `rnn`.
    fn library(&self, n: &mut NodeContext<'_, '_>, backwards: &[bool]) -> Result<[Expr; 3]> {
        let flipped = backwards == [true];
        let flip = |x: &Expr| if flipped { x.flip(&[0]) } else { x.clone() };
        let x = flip(&self.x);
        let parameters = self.parameters(n, backwards.len())?;
        let mode = match (self.kind, self.activations.first().map(String::as_str)) {
            (Kind::Lstm, _) => RnnMode::Lstm,
            (Kind::Gru, _) => RnnMode::Gru,
            (Kind::Simple, Some("relu")) => RnnMode::Relu,
            (Kind::Simple, _) => RnnMode::Tanh,
        };
        let width = x.dims().last().and_then(|dim| dim.get());
        let width = width.ok_or_else(|| refuse("a recurrent layer needs a known number of inputs"))?;
        let states: Vec<&Expr> = [&self.hidden].into_iter().chain(&self.cell).collect();
        let op = emit(RnnLayers {
            input: (&x).into(),
            pre_state: states.iter().map(|state| (*state).into()).collect(),
            weight_list: parameters.iter().map(Into::into).collect(),
            sequence_length: self.lengths.as_ref().map(Into::into),
            out: New,
            dropout_state: None,
            state: states.iter().map(|_| New).collect(),
            reserve: New,
            rnn: RnnAttrs::default()
                .is_bidirec(backwards.len() == 2)
                .input_size(narrow_int(width as i64)?)
                .hidden_size(narrow_int(self.units)?)
                .mode(mode),
        });
        let y = reshape(&flip(&op.out), &[0, 0, backwards.len() as i64, self.units]);
        let [hidden, cell] = [0, 1].map(|i| op.state.get(i).unwrap_or(&op.state[0]).clone());
        Ok([permute(&y, &[0, 2, 1, 3]), hidden, cell])
    }

    /// Outputs of all steps, and the last states, step by step.
    fn unrolled(&self, n: &mut NodeContext<'_, '_>, backwards: &[bool]) -> Result<[Expr; 3]> {
        let steps = dim_of(&self.x, 0).filter(|steps| (1..=STEPS).contains(steps));
        let steps =
            steps.ok_or_else(|| refuse("recurrent layers of this form need a known number of steps"))?;
        let weights = Weights { weight: n.input(1)?, recurrence: n.input(2)?, bias: n.optional(3)? };
        let mut found: [Vec<Expr>; 3] = Default::default();
        for (direction, backwards) in backwards.iter().enumerate() {
            for (list, value) in found.iter_mut().zip(self.direction(&weights, direction, *backwards, steps)?)
            {
                list.push(value);
            }
        }
        let [y, hidden, cell] = found.map(|list| list.iter().map(|x| x.unsqueeze(&[0])).collect::<Vec<_>>());
        let joined = |list: Vec<Expr>| concat(&list.iter().collect::<Vec<_>>(), 0);
        Ok([permute(&joined(y), &[1, 0, 2, 3]), joined(hidden), joined(cell)])
    }

    fn direction(
        &self,
        weights: &Weights,
        direction: usize,
        backwards: bool,
        steps: i64,
    ) -> Result<[Expr; 3]> {
        let gates = self.kind.gates().len() as i64;
        let rows = self.units * gates;
        let (weight, recurrence) =
            (part_of(&weights.weight, direction), part_of(&weights.recurrence, direction));
        let bias = weights.bias.as_ref().map(|bias| part_of(bias, direction));
        let part = |i: i64| bias.as_ref().map(|bias| slice_axis(bias, 0, i * rows, (i + 1) * rows));
        let mut projected = product(&self.x, &weight, false, true);
        if let Some(bias) = part(0) {
            projected = &projected + &bias;
        }
        let cell = Cell {
            layer: self,
            recurrence,
            bias: part(1),
            peepholes: self.peepholes.as_ref().map(|peepholes| part_of(peepholes, direction)),
            activations: &self.activations
                [(direction * self.kind.default_activations().len()).min(self.activations.len())..],
        };
        let mut hidden = part_of(&self.hidden, direction);
        let mut state = self.cell.as_ref().map_or(hidden.clone(), |cell| part_of(cell, direction));
        let mut outputs = vec![];
        for step in 0..steps {
            let step = if backwards { steps - 1 - step } else { step };
            let x = slice_axis(&projected, 0, step, step + 1).squeeze(&[0]);
            let [next_hidden, next_state] = cell.step(&x, &hidden, &state)?;
            let output = match &self.lengths {
                None => {
                    (hidden, state) = (next_hidden, next_state);
                    hidden.clone()
                }
                Some(lengths) => {
                    let runs = int_like(lengths, step).less_than(lengths).cast(x.dtype()).unsqueeze(&[1]);
                    let rests = &runs * -1.0 + 1.0;
                    let output = &next_hidden * &runs;
                    hidden = &output + &(&hidden * &rests);
                    state = &(&next_state * &runs) + &(&state * &rests);
                    output
                }
            };
            outputs.push(output.unsqueeze(&[0]));
        }
        if backwards {
            outputs.reverse();
        }
        Ok([concat(&outputs.iter().collect::<Vec<_>>(), 0), hidden, state])
    }
}

/// The parameters of all directions.
struct Weights {
    weight: Expr,
    recurrence: Expr,
    bias: Option<Expr>,
}

/// One step of a direction.
struct Cell<'a> {
    layer: &'a Layer,
    recurrence: Expr,
    bias: Option<Expr>,
    peepholes: Option<Expr>,
    activations: &'a [String],
}

impl Cell<'_> {
    fn activation(&self, i: usize, x: &Expr) -> Result<Expr> {
        let x = match self.layer.clip {
            Some(clip) => x.clip(-f64::from(clip), clip.into()),
            None => x.clone(),
        };
        match self.activations.get(i).map(String::as_str) {
            Some("sigmoid") => Ok(x.sigmoid()),
            Some("tanh") => Ok(x.tanh()),
            Some("relu") => Ok(x.relu()),
            Some("softsign") => Ok(x.softsign()),
            Some("softplus") => Ok(x.softplus()),
            other => Err(refuse(format!(
                "activation `{}` of a recurrent layer is not supported",
                other.unwrap_or("")
            ))),
        }
    }

    /// Part `i` of `count` rows of gates.
    fn gate(&self, x: &Expr, i: i64) -> Expr {
        let axis = x.dims().len().saturating_sub(1);
        slice_axis(x, axis, i * self.layer.units, (i + 1) * self.layer.units)
    }

    /// The projection of the hidden state by the rows of some gates.
    fn projected(&self, hidden: &Expr, from: i64, to: i64) -> Expr {
        let units = self.layer.units;
        let rows = slice_axis(&self.recurrence, 0, from * units, to * units);
        let out = product(hidden, &rows, false, true);
        match &self.bias {
            Some(bias) => &out + &slice_axis(bias, 0, from * units, to * units),
            None => out,
        }
    }

    fn step(&self, x: &Expr, hidden: &Expr, state: &Expr) -> Result<[Expr; 2]> {
        match self.layer.kind {
            Kind::Simple => {
                let hidden = self.activation(0, &(x + &self.projected(hidden, 0, 1)))?;
                Ok([hidden.clone(), hidden])
            }
            Kind::Gru => {
                let gates = &slice_axis(x, 1, 0, 2 * self.layer.units) + &self.projected(hidden, 0, 2);
                let (update, reset) =
                    (self.activation(0, &self.gate(&gates, 0))?, self.activation(0, &self.gate(&gates, 1))?);
                let inner = match self.layer.reset_behind {
                    true => &reset * &self.projected(hidden, 2, 3),
                    false => self.projected(&(&reset * hidden), 2, 3),
                };
                let new = self.activation(1, &(&self.gate(x, 2) + &inner))?;
                let hidden = &(&(&update * -1.0 + 1.0) * &new) + &(&update * hidden);
                Ok([hidden.clone(), hidden])
            }
            Kind::Lstm => {
                let gates = x + &self.projected(hidden, 0, 4);
                let gate = |i: i64, peephole: i64, state: &Expr| match &self.peepholes {
                    Some(weights) => &self.gate(&gates, i) + &(&self.gate(weights, peephole) * state),
                    None => self.gate(&gates, i),
                };
                let input = self.activation(0, &gate(0, 0, state))?;
                let forget = match self.layer.coupled {
                    true => &input * -1.0 + 1.0,
                    false => self.activation(0, &gate(2, 2, state))?,
                };
                let new = self.activation(1, &self.gate(&gates, 3))?;
                let state = &(&forget * state) + &(&input * &new);
                let output = self.activation(0, &gate(1, 1, &state))?;
                Ok([&output * &self.activation(2, &state)?, state])
            }
        }
    }
}
