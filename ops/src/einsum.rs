//! `einsum`: sums of products in the notation of Einstein, composed of products of matrices.

use std::collections::BTreeSet;

use autobwd::{
    Composed, Composition, Dims, Error, ErrorKind, Expr, Infer, Meta, New, Result, Var, check::*, emit,
    register_op, tensor::Dim,
};

use crate::{
    Math,
    math::{DimExpr, product},
};

/// Sums of products: `out[o] = Σ x₀[i₀] · x₁[i₁] · …`, over all indices that `o` lacks.
///
/// The equation names the dimensions of each operand by letters, and the dimensions of the result after `->`; by default,
/// the result has the letters that occur once, in alphabetical order. `...` stands for any number of dimensions, which broadcast. A
/// letter twice in an operand is its diagonal. Operands are multiplied from the left to the right.
#[register_op(grad = Composed, composed)]
pub struct Einsum<V = Var> {
    /// At least one tensor.
    #[input]
    pub operands: Vec<V>,
    /// The dimensions after `->`.
    #[output]
    pub out: V,
    /// Letters of the operands, separated by commas, and of the result; spaces do not count.
    #[attr]
    pub equation: String,
}
impl Infer for Einsum<Meta> {
    fn infer(&mut self) -> Result<()> {
        let Some(first) = self.operands.first() else {
            return Err(Error::new(ErrorKind::Slot, "`Operands`: at least one variable is needed"));
        };
        first.float()?;
        self.operands.iter().try_for_each(|operand| operand.same_dtype(first))?;
        let ranks: Vec<usize> = self.operands.iter().map(Meta::rank).collect();
        let equation = Equation::read(&self.equation, &ranks)?;
        let mut sizes: Vec<Option<Dim>> = vec![None; equation.count];
        for (operand, labels) in self.operands.iter().zip(&equation.operands) {
            for (label, dim) in labels.iter().zip(operand.dims.iter()) {
                sizes[*label] = Some(match sizes[*label] {
                    None => *dim,
                    Some(known) if *label >= LETTERS && *dim == 1 => known,
                    Some(known) if *label >= LETTERS && known == 1 => *dim,
                    Some(known) if *label >= LETTERS && known.get().zip(dim.get()).is_none() => Dim::UNKNOWN,
                    Some(known) => {
                        operand.require(dim.agrees(known), || {
                            format!("a dimension of {known} is needed for {dim}")
                        })?;
                        known.or(*dim)
                    }
                });
            }
        }
        let dims = equation.out.iter().map(|label| sizes[*label].unwrap_or(Dim::UNKNOWN));
        self.out.set(first.dtype, dims.collect::<Dims>());
        Ok(())
    }
}
impl Composition for Einsum<Expr> {
    fn compose(&mut self) {
        let ranks: Vec<usize> = self.operands.iter().map(|operand| operand.dims().len()).collect();
        // The shape rule has accepted the equation.
        let Ok(equation) = Equation::read(&self.equation, &ranks) else { return };
        let terms = self.operands.iter().zip(&equation.operands);
        let mut terms = terms.map(|(x, labels)| Term { x: x.clone(), labels: labels.clone() }.diagonal());
        let Some(mut whole) = terms.next() else { return };
        for (next, term) in (1..).zip(terms) {
            let later = equation.operands.iter().skip(next + 1).flatten();
            let kept: BTreeSet<usize> = equation.out.iter().chain(later).copied().collect();
            whole = whole.times(term, &kept);
        }
        self.out = whole.only(&equation.out.iter().copied().collect()).ordered(&equation.out).x;
    }
}
autobwd::samples!(
    Einsum,
    [
        einsum_of([uniform([2, 3]), uniform([3, 4])], "ij,jk->ik"),
        einsum_of([uniform([2, 3, 4]), uniform([2, 5, 4])], "bqd, bkd -> bqk"),
        einsum_of([uniform([2, 3]), uniform([4])], "ij,k->kji"),
        einsum_of([uniform([3, 2]), uniform([3, 2]), uniform([2, 4])], "ij,ij,jk->k"),
        einsum_of([uniform([2, 1, 3, 4]), uniform([5, 4, 2])], "...ij,...jk->...ik"),
        einsum_of([uniform([3, 3])], "ii->i"),
        einsum_of([uniform([3, 2, 3])], "iji"),
        einsum_of([uniform([2, 3])], "ba"),
        einsum_of([uniform([2, 3, 4])], "ijk->"),
        einsum_of([uniform([2, 0]), uniform([0, 3])], "ij,jk->ik"),
        einsum_of([uniform([]), uniform([3])], ",i->i"),
        einsum_of([], "->").fails("`Operands`: at least one variable is needed"),
        einsum_of([uniform([2, 3]), uniform([2, 3])], "ij,jk->ik").fails("a dimension of 3 is needed for 2"),
        einsum_of([uniform([1, 3]), uniform([2, 3])], "ij,ij->i").fails("a dimension of 1 is needed for 2"),
        einsum_of([uniform([2, 3])], "ijk->i")
            .fails("attribute `equation`: operand 0 has 2 dimensions, not 3"),
        einsum_of([uniform([2, 3])], "ij,jk->ik").fails("attribute `equation`: it has 2 operands, not 1"),
        einsum_of([uniform([2, 3])], "ij->ik").fails("attribute `equation`: no operand has `k`"),
        einsum_of([uniform([2, 3])], "ij->ii").fails("attribute `equation`: the result has `i` twice"),
        einsum_of([uniform([2, 3])], "i1->i").fails("attribute `equation`: `1` is no letter"),
        einsum_of([uniform([2, 3])], "......").fails("attribute `equation`: `...` is there twice"),
    ]
);

fn einsum_of<const N: usize>(operands: [Draw; N], equation: &str) -> Einsum<Draw> {
    Einsum { operands: operands.into(), out: out(), equation: equation.into() }
}

/// Sums of products of tensors in the notation of Einstein. It fails for an equation that does not fit them.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_ops::{Math, einsum};
///
/// let tape = autobwd::eager();
/// let x = tape.constant(Tensor::from_vec([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?);
/// assert_eq!(einsum("ij,jk->ik", &[&x, &x]).tensor()?, x.matmul(&x).tensor()?);
/// assert_eq!(einsum("ii", &[&x]).item()?, 5.0);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn einsum(equation: &str, operands: &[&Expr]) -> Expr {
    let operands = operands.iter().map(|operand| (*operand).into()).collect();
    emit(Einsum { operands, out: New, equation: equation.into() }).out
}

/// The dimensions of operands and of the result, by numbers: the same number is the same index.
struct Equation {
    operands: Vec<Vec<usize>>,
    out: Vec<usize>,
    /// The number of indices.
    count: usize,
}

/// The number of letters. Indices of broadcast dimensions follow, from the last dimension on.
const LETTERS: usize = 52;

impl Equation {
    fn read(text: &str, ranks: &[usize]) -> Result<Equation> {
        let refuse = |why: String| Err(Error::attr("equation", why));
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, result) = match text.split_once("->") {
            Some((inputs, result)) => (inputs, Some(result)),
            None => (&text[..], None),
        };
        let inputs: Vec<&str> = inputs.split(',').collect();
        if inputs.len() != ranks.len() {
            return refuse(format!("it has {} operands, not {}", inputs.len(), ranks.len()));
        }
        let inputs = inputs.into_iter().map(Equation::letters).collect::<Result<Vec<_>>>()?;
        let mut most = 0;
        let mut operands = vec![];
        for (k, ((letters, dots), rank)) in inputs.iter().zip(ranks).enumerate() {
            let broadcast = match (rank.checked_sub(letters.len()), dots) {
                (Some(rest), Some(_)) => rest,
                (Some(0), None) => 0,
                _ => return refuse(format!("operand {k} has {rank} dimensions, not {}", letters.len())),
            };
            most = most.max(broadcast);
            let mut labels = letters.clone();
            let at = dots.unwrap_or(0);
            labels.splice(at..at, (0..broadcast).rev().map(|i| LETTERS + i));
            operands.push(labels);
        }
        let broadcast = || (0..most).rev().map(|i| LETTERS + i);
        let out = match result {
            Some(result) => {
                let (letters, dots) = Equation::letters(result)?;
                let mut labels = letters;
                match dots {
                    Some(at) => drop(labels.splice(at..at, broadcast())),
                    None if most > 0 => return refuse("the result lacks `...`".into()),
                    None => {}
                }
                labels
            }
            None => {
                let count = |label: usize| operands.iter().flatten().filter(|other| **other == label).count();
                broadcast().chain((0..LETTERS).filter(|label| count(*label) == 1)).collect()
            }
        };
        for (k, label) in out.iter().enumerate() {
            if out[..k].contains(label) {
                return refuse(format!("the result has `{}` twice", letter(*label)));
            }
            if *label < LETTERS && !operands.iter().flatten().any(|other| other == label) {
                return refuse(format!("no operand has `{}`", letter(*label)));
            }
        }
        Ok(Equation { operands, out, count: LETTERS + most })
    }

    /// The indices of letters, and the position of `...` among them.
    fn letters(text: &str) -> Result<(Vec<usize>, Option<usize>)> {
        let refuse = |why: String| Err(Error::attr("equation", why));
        let (before, after) = match text.split_once("...") {
            Some((_, after)) if after.contains("...") => return refuse("`...` is there twice".into()),
            Some((before, after)) => (before, Some(after)),
            None => (text, None),
        };
        let mut labels = vec![];
        for c in before.chars().chain(after.unwrap_or_default().chars()) {
            match c {
                'A'..='Z' => labels.push(c as usize - 'A' as usize),
                'a'..='z' => labels.push(c as usize - 'a' as usize + 26),
                _ => return refuse(format!("`{c}` is no letter")),
            }
        }
        Ok((labels, after.map(|_| before.len())))
    }
}

/// The letter of an index: `A` to `Z`, then `a` to `z`.
fn letter(label: usize) -> char {
    let code = if label < 26 { b'A' as usize + label } else { b'a' as usize + label - 26 };
    char::from(code as u8)
}

/// An expression, and the index of each of its dimensions.
struct Term {
    x: Expr,
    labels: Vec<usize>,
}

impl Term {
    fn axis(&self, label: usize) -> Option<usize> {
        self.labels.iter().position(|other| *other == label)
    }

    fn dim(&self, label: usize) -> DimExpr {
        self.axis(label).map_or(1.into(), |axis| self.x.dim(axis as i32))
    }

    /// With the dimensions in this order.
    fn ordered(self, labels: &[usize]) -> Term {
        let axes: Vec<i32> = labels.iter().filter_map(|label| Some(self.axis(*label)? as i32)).collect();
        let is_same = axes.iter().zip(0..).all(|(axis, i)| *axis == i);
        let x = if is_same { self.x } else { self.x.transpose(&axes) };
        Term { x, labels: labels.to_vec() }
    }

    /// Sums over all other indices.
    fn only(self, labels: &BTreeSet<usize>) -> Term {
        let axes: Vec<i32> = self
            .labels
            .iter()
            .zip(0..)
            .filter(|(label, _)| !labels.contains(label))
            .map(|(_, i)| i)
            .collect();
        if axes.is_empty() {
            return self;
        }
        let x = self.x.sum(&axes);
        Term { x, labels: self.labels.into_iter().filter(|label| labels.contains(label)).collect() }
    }

    /// Each index once: elements at equal positions of dimensions with one index.
    fn diagonal(mut self) -> Term {
        while let Some(second) = (0..self.labels.len()).find(|i| self.labels[..*i].contains(&self.labels[*i]))
        {
            let label = self.labels[second];
            let first = self.axis(label).unwrap_or(second);
            let others = || (0..self.labels.len()).filter(|i| *i != first && *i != second);
            let axes: Vec<i32> = others().chain([first, second]).map(|i| i as i32).collect();
            let dims: Vec<DimExpr> = others().map(|i| self.x.dim(i as i32)).collect();
            let n = self.x.dim(first as i32);
            let flat = [&dims[..], &[n.clone() * n.clone()]].concat();
            let places = crate::positions(self.x.builder(), &n) * &(n.number(self.x.builder()) + 1.0);
            let x = self.x.transpose(&axes).reshape_to(&flat).gather(&places, dims.len() as i32);
            let labels = others().map(|i| self.labels[i]).chain([label]).collect();
            self = Term { x, labels };
        }
        self
    }

    /// The product, summed over all indices but these.
    fn times(self, other: Term, kept: &BTreeSet<usize>) -> Term {
        let of = |term: &Term| term.labels.iter().copied().collect::<BTreeSet<usize>>();
        let (own, others) = (of(&self), of(&other));
        let a = self.only(&kept.union(&others).copied().collect());
        let b = other.only(&kept.union(&own).copied().collect());
        let (own, others) = (of(&a), of(&b));
        let shared: Vec<usize> = own.intersection(&others).copied().collect();
        let (batch, summed): (Vec<usize>, Vec<usize>) = shared.iter().partition(|label| kept.contains(label));
        let rows: Vec<usize> = own.difference(&others).copied().collect();
        let columns: Vec<usize> = others.difference(&own).copied().collect();
        let (a, b) = (a.broadcast(&b, &shared), b.broadcast(&a, &shared));
        let [batch_dims, row_dims, inner_dims] = [&batch, &rows, &summed].map(|labels| a.dims(labels));
        let column_dims = b.dims(&columns);
        let [n, m, k, l] = [&batch_dims, &row_dims, &inner_dims, &column_dims].map(|dims| product(dims));
        let a = a.ordered(&[&batch[..], &rows, &summed].concat()).x.reshape_to(&[n.clone(), m, k.clone()]);
        let b = b.ordered(&[&batch[..], &summed, &columns].concat()).x.reshape_to(&[n, k, l]);
        let x = a.bmm(&b).reshape_to(&[batch_dims, row_dims, column_dims].concat());
        Term { x, labels: [batch, rows, columns].concat() }
    }

    fn dims(&self, labels: &[usize]) -> Vec<DimExpr> {
        labels.iter().map(|label| self.dim(*label)).collect()
    }

    /// Repeats broadcast dimensions of 1 as often as the other has them.
    fn broadcast(&self, other: &Term, shared: &[usize]) -> Term {
        let repeated = |label: &usize| {
            let [own, others] = [self, other].map(|term| term.dim(*label).known());
            let differ = own.is_none() || others.is_none() || (own == Some(1) && others != Some(1));
            *label >= LETTERS && shared.contains(label) && differ
        };
        let Term { x, labels } = self;
        if !labels.iter().any(repeated) {
            return Term { x: x.clone(), labels: labels.clone() };
        }
        let size = |label: &usize| match (repeated(label), other.dim(*label)) {
            (true, of_other) if of_other.known().is_some_and(|n| n != 1) => of_other,
            (true, of_other) => self.dim(*label).max(of_other),
            (false, _) => self.dim(*label),
        };
        let dims = labels.iter().map(size);
        Term { x: x.expand_to(&dims.collect::<Vec<_>>()), labels: labels.clone() }
    }
}
