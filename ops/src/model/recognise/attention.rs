//! Attention that is written out: `softmax(scale * q * k^T + mask) * v`.

use std::collections::HashSet;

use autobwd::{
    DType, OpDesc, Program, VarDesc,
    program::{Attr, Var},
    tensor::Dim,
};

use super::{
    declared,
    functions::KnownFunction,
    numbers,
    subgraph::{Subgraph, Uses},
};
use crate::{
    Math,
    attention::{AttentionAttrs, AttentionOptions},
};

/// The order of dimensions that brings heads before positions, and back.
const HEADS: [i32; 4] = [0, 2, 1, 3];

/// As `HEADS`, for keys that are transposed for a product.
const TRANSPOSED: [i32; 4] = [0, 3, 1, 2];

/// Attention that ends with an operator: a product of weights and values, or a transposition of it.
pub(super) fn find(program: &Program, uses: &Uses, end: usize) -> Option<(Subgraph, KnownFunction)> {
    let mut part = Part { program, uses, ops: vec![end] };
    let last = &program.root().ops[end];
    let transposition = last.outputs.get("Out").first().and_then(|out| uses.transposition(program, *out));
    let is_transposed = transposition.is_some_and(|(_, _, order)| order == HEADS);
    let product = if is_transposed { part.inner(one(last, "X")?, "matmul_v2")? } else { last };
    let (weights, v) = factors(product, false)?;
    let (softmax, are_zeroed) = part.softmax(weights)?;
    let (mut scores, mut mask) = (one(softmax, "X")?, None);
    if let Some(sum) = part.inner(scores, "elementwise_add") {
        let aligned = matches!(sum.attrs.get("axis"), None | Some(Attr::I32(-1)));
        let terms = [one(sum, "X")?, one(sum, "Y").filter(|_| aligned)?];
        let is_product = |var: &Var| part.is_product(*var);
        let product = terms.iter().position(is_product)?;
        (scores, mask) = (terms[product], Some(terms[1 - product]));
    }
    if !are_zeroed && mask.is_some_and(|mask| !is_finite(program, uses, mask)) {
        return None;
    }
    let mut scale = 1.0;
    let scores = part.unscaled(scores, &mut scale);
    let product = part.inner(scores, "matmul_v2")?;
    let keys_are_rows = product.attrs.get("trans_y") == Some(&Attr::Bool(true));
    let (q, k) = factors(product, keys_are_rows)?;
    let (q, k) = (part.unscaled(q, &mut scale), part.unscaled(k, &mut scale));
    let tensors = [(q, HEADS), (k, if keys_are_rows { HEADS } else { TRANSPOSED }), (v, HEADS)];
    let dims = |var: Var| declared(program, var).map(|desc| &desc.dims).filter(|dims| dims.len() == 4);
    // Products broadcast batches and heads, attention does not.
    let (batch, heads) = (dims(q)?[0], dims(k)?[1]);
    let fits = tensors.iter().all(|(var, _)| dims(*var).is_some_and(|dims| is_one_batch(dims[0], batch)));
    if !fits || !dims(v)?[1].agrees(heads) || scale == 0.0 {
        return None;
    }
    let sources = tensors.map(|(var, order)| source(program, uses, var, order));
    let inputs: Vec<Var> = sources.iter().map(|source| source.0).chain(mask).collect();
    let metas = inputs.iter().map(|input| program.root().vars.get(input).map(VarDesc::meta));
    let function = KnownFunction::new(&metas.collect::<Option<Vec<_>>>()?, &|inputs| {
        let ordered = |i: usize| match sources[i].1 {
            [0, 1, 2, 3] => inputs[i].clone(),
            order => inputs[i].transpose(&order),
        };
        let mut q = ordered(0);
        let mut attrs = AttentionAttrs { scale: scale as f32, ..AttentionAttrs::default() };
        // The attribute has the precision of float32.
        if q.dtype() == DType::F64 {
            (q, attrs.scale) = (q * scale, 1.0);
        }
        let options = AttentionOptions { mask: inputs.get(3).cloned(), attrs, ..AttentionOptions::default() };
        let out = q.attention_with(&ordered(1), &ordered(2), &options);
        if is_transposed { out } else { out.transpose(&HEADS) }
    })?;
    let bypassed = sources.iter().filter_map(|source| source.2).collect();
    Some((Subgraph { ops: part.ops, inputs, output: *last.outputs.get("Out").first()?, bypassed }, function))
}

/// Whether dimensions are equal, as far as is known: an open one may be another than a number, 1 for one.
fn is_one_batch(one: Dim, other: Dim) -> bool {
    let may_be_equal = one.is_open() && other.is_open() && !(one.is_named() && other.is_named());
    one == other || may_be_equal
}

/// The operators that were found so far.
struct Part<'p> {
    program: &'p Program,
    uses: &'p Uses,
    ops: Vec<usize>,
}

impl<'p> Part<'p> {
    /// Whether a variable is a product of matrices, or a multiple of one.
    fn is_product(&self, var: Var) -> bool {
        let writer = |var: Var| self.uses.writer(self.program, var).map(|(_, op)| op);
        match writer(var) {
            Some(op) if &*op.ty == "scale" => {
                one(op, "X").and_then(writer).is_some_and(|op| &*op.ty == "matmul_v2")
            }
            op => op.is_some_and(|op| &*op.ty == "matmul_v2"),
        }
    }

    /// The operator of a type that writes a variable which only the operators found so far read; it is found, too.
    fn inner(&mut self, var: Var, ty: &str) -> Option<&'p OpDesc> {
        let (i, op) = self.uses.writer(self.program, var).filter(|(_, op)| &*op.ty == ty)?;
        let is_inner = |var: Var| self.uses.is_read_by(var, |reader| self.ops.contains(&reader));
        let is_end = |desc: &VarDesc| desc.stop_gradient && desc.dtype.is_float();
        if self.program.root().vars.get(&var).is_none_or(is_end) || !op.writes().all(is_inner) {
            return None;
        }
        self.ops.push(i);
        Some(op)
    }

    /// The `softmax` of weights, and whether NaN becomes 0: `where(isnan(x), 0, x)`.
    fn softmax(&mut self, weights: Var) -> Option<(&'p OpDesc, bool)> {
        let choice = self.inner(weights, "where");
        let mut softmax = weights;
        if let Some(choice) = choice {
            let (zeros, is_nan) = (self.inner(one(choice, "X")?, "expand_as_v2")?, one(choice, "Condition")?);
            softmax = one(choice, "Y")?;
            let is_nan = self.inner(is_nan, "isnan_v2")?;
            let is_zero = self.uses.is_zero(self.program, one(zeros, "X")?);
            if one(is_nan, "X")? != softmax || !is_zero {
                return None;
            }
        }
        let softmax = self.inner(softmax, "softmax")?;
        let is_last = matches!(softmax.attrs.get("axis"), None | Some(Attr::I32(-1 | 3)));
        is_last.then_some((softmax, choice.is_some()))
    }

    /// The variable that another one is a multiple of.
    fn unscaled(&mut self, var: Var, scale: &mut f64) -> Var {
        let before = self.ops.len();
        let factor = self.inner(var, "scale").and_then(|op| {
            let number = |name| op.attrs.get(name).and_then(|attr| numbers(attr).first().copied());
            let is_multiple = number("bias") == Some(0.0) && one(op, "ScaleTensor").is_none();
            Some((number("scale").filter(|_| is_multiple)?, one(op, "X")?))
        });
        match factor {
            Some((factor, source)) => {
                *scale *= factor;
                source
            }
            None => {
                self.ops.truncate(before);
                var
            }
        }
    }
}

/// The only variable of a slot.
fn one(op: &OpDesc, slot: &str) -> Option<Var> {
    match op.inputs.get(slot) {
        [var] if *var != Var::EMPTY => Some(*var),
        _ => None,
    }
}

/// The factors of a product whose second factors are transposed or not.
fn factors(product: &OpDesc, is_transposed: bool) -> Option<(Var, Var)> {
    let has = |name, value| product.attrs.get(name).unwrap_or(&Attr::Bool(false)) == &Attr::Bool(value);
    let fits = &*product.ty == "matmul_v2" && has("trans_x", false) && has("trans_y", is_transposed);
    Some((one(product, "X")?, one(product, "Y")?)).filter(|_| fits)
}

/// What an order of dimensions of a variable is of the variable that a transposition made it from, with the
/// transposition.
fn source(program: &Program, uses: &Uses, var: Var, order: [i32; 4]) -> (Var, [i32; 4], Option<usize>) {
    let of_transposed = || {
        let (i, x, before) = uses.transposition(program, var)?;
        let composed =
            order.map(|axis| before.get(axis as usize).copied().filter(|axis| (0..4).contains(axis)));
        let [Some(a), Some(b), Some(c), Some(d)] = composed else { return None };
        Some((x, [a, b, c, d], Some(i)))
    };
    of_transposed().unwrap_or((var, order, None))
}

/// Whether nothing infinite can come from the numbers in the program that a variable depends on.
fn is_finite(program: &Program, uses: &Uses, var: Var) -> bool {
    let (mut open, mut seen) = (vec![var], HashSet::new());
    while let Some(var) = open.pop() {
        // Integers are finite, whatever they are made from.
        let desc = program.root().vars.get(&var);
        if !seen.insert(var) || desc.is_some_and(|desc| !desc.dtype.is_float()) {
            continue;
        }
        let Some((_, op)) = uses.writer(program, var) else {
            match desc {
                Some(desc) if desc.parameter => continue,
                _ => return false,
            }
        };
        let is_infinite = |attr: &Attr| match attr {
            Attr::Str(text) => text.contains("inf"),
            attr => numbers(attr).iter().any(|x| x.is_infinite()),
        };
        if op.attrs.iter().any(|(_, attr)| is_infinite(attr)) || op.attrs.blocks().next().is_some() {
            return false;
        }
        open.extend(op.reads());
    }
    true
}
