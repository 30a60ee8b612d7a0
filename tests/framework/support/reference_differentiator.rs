//! A plain reference differentiator of programs: it computes all values on matrices, records the graph, and runs a
//! backward pass. It shares no code with the backward builder or with kernels.

use std::collections::{HashMap, HashSet};

use autobwd::{Attr, OpDesc, Program, Var, op::AttrValue};

/// Rows and columns; a vector is one row.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    dims: [usize; 2],
    pub(crate) data: Vec<f64>,
}

impl Matrix {
    pub(crate) fn new(dims: &[usize], data: Vec<f64>) -> Matrix {
        let at = |back: usize| dims.len().checked_sub(back).map_or(1, |i| dims[i]);
        Matrix { dims: [at(2), at(1)], data }
    }

    /// Ones in the shape of another matrix.
    pub(crate) fn ones(like: &Matrix) -> Matrix {
        Matrix { dims: like.dims, data: vec![1.0; like.data.len()] }
    }

    fn of(dims: [usize; 2], f: impl Fn(usize, usize) -> f64) -> Matrix {
        let data = (0..dims[0]).flat_map(|i| (0..dims[1]).map(move |j| (i, j))).map(|(i, j)| f(i, j));
        Matrix { dims, data: data.collect() }
    }

    /// An element; single rows and columns broadcast.
    fn at(&self, i: usize, j: usize) -> f64 {
        self.data[(i % self.dims[0]) * self.dims[1] + j % self.dims[1]]
    }

    /// Adds elements, summed over broadcast rows and columns.
    fn add(&mut self, other: &Matrix) {
        for (k, x) in other.data.iter().enumerate() {
            let (i, j) = (k / other.dims[1] % self.dims[0], k % other.dims[1] % self.dims[1]);
            self.data[i * self.dims[1] + j] += x;
        }
    }

    fn transposed(&self) -> Matrix {
        Matrix::of([self.dims[1], self.dims[0]], |i, j| self.at(j, i))
    }

    fn times(&self, other: &Matrix) -> Matrix {
        let dot = |i, j| (0..self.dims[1]).map(|k| self.at(i, k) * other.at(k, j)).sum();
        Matrix::of([self.dims[0], other.dims[1]], dot)
    }

    fn columns(&self, from: usize, count: usize) -> Matrix {
        Matrix::of([self.dims[0], count], |i, j| self.at(i, from + j))
    }
}

fn number(op: &OpDesc, name: &str) -> f64 {
    let attr = op.attrs.get(name).map(f64::from_attr);
    attr.and_then(std::result::Result::ok)
        .unwrap_or_else(|| panic!("attribute `{name}` of {op:?} is not a number"))
}

/// An elementwise function and its derivative.
fn unary(op: &OpDesc, x: f64) -> Option<[f64; 2]> {
    Some(match op.ty.as_str() {
        "tanh" => [x.tanh(), 1.0 - x.tanh().powi(2)],
        "sin" => [x.sin(), x.cos()],
        "sigmoid" => [1.0 / (1.0 + (-x).exp()), 1.0 / (2.0 + x.exp() + (-x).exp())],
        "square" => [x * x, 2.0 * x],
        "scale" => [number(op, "scale") * x + number(op, "bias"), number(op, "scale")],
        "increment" => [x + number(op, "step"), 1.0],
        "assign" => [x, 1.0],
        "fill_any_like" => [number(op, "value"), 0.0],
        _ => return None,
    })
}

/// An elementwise function of two variables and its derivatives.
fn binary(op: &OpDesc, x: f64, y: f64) -> Option<[f64; 3]> {
    Some(match op.ty.as_str() {
        "elementwise_add" => [x + y, 1.0, 1.0],
        "elementwise_sub" => [x - y, 1.0, -1.0],
        "elementwise_mul" => [x * y, y, x],
        "elementwise_div" => [x / y, 1.0 / y, -x / (y * y)],
        _ => return None,
    })
}

/// The outputs of an operator; `shape` is that of the first.
fn forward(op: &OpDesc, x: &[&Matrix], shape: [usize; 2]) -> Vec<Matrix> {
    let each = |f: &dyn Fn(usize, usize) -> f64| vec![Matrix::of(shape, f)];
    match op.ty.as_str() {
        _ if unary(op, 0.0).is_some() => each(&|i, j| unary(op, x[0].at(i, j)).map_or(0.0, |f| f[0])),
        _ if binary(op, 1.0, 1.0).is_some() => {
            each(&|i, j| binary(op, x[0].at(i, j), x[1].at(i, j)).map_or(0.0, |f| f[0]))
        }
        "matmul_v2" => vec![x[0].times(x[1])],
        "softmax" => {
            let sum = |i| (0..shape[1]).map(|j| x[0].at(i, j).exp()).sum::<f64>();
            each(&|i, j| x[0].at(i, j).exp() / sum(i))
        }
        "reduce_sum" => each(&|_, _| x[0].data.iter().sum()),
        "mean" | "reduce_mean" => each(&|_, _| x[0].data.iter().sum::<f64>() / x[0].data.len() as f64),
        "transpose2" => vec![x[0].transposed()],
        "reshape2" => vec![Matrix { dims: shape, data: x[0].data.clone() }],
        "concat" => {
            let joined = x[1..].iter().fold(x[0].transposed(), |all, x| {
                Matrix::of([all.dims[0] + x.dims[1], all.dims[1]], |i, j| {
                    if i < all.dims[0] { all.at(i, j) } else { x.at(j, i - all.dims[0]) }
                })
            });
            vec![joined.transposed()]
        }
        "split" => {
            let Some(Attr::I32s(sizes)) = op.attrs.get("sections") else { panic!("{op:?}") };
            let starts = sizes.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + *n as usize)));
            starts.zip(sizes).map(|(from, n)| x[0].columns(from, *n as usize)).collect()
        }
        other => panic!("no plain `{other}`"),
    }
}

/// Gradients of the inputs from those of the outputs.
fn backward(op: &OpDesc, x: &[&Matrix], y: &[&Matrix], dy: &[Matrix]) -> Vec<Matrix> {
    let first = &dy[0];
    let full = |f: &dyn Fn(usize, usize) -> f64| Matrix::of(first.dims, f);
    match op.ty.as_str() {
        _ if unary(op, 0.0).is_some() => {
            vec![full(&|i, j| first.at(i, j) * unary(op, x[0].at(i, j)).map_or(0.0, |f| f[1]))]
        }
        _ if binary(op, 1.0, 1.0).is_some() => {
            let by = |k: usize| {
                let slope = move |i, j| binary(op, x[0].at(i, j), x[1].at(i, j)).map_or(0.0, |f| f[k]);
                full(&move |i, j| first.at(i, j) * slope(i, j))
            };
            vec![by(1), by(2)]
        }
        "matmul_v2" => vec![first.times(&x[1].transposed()), x[0].transposed().times(first)],
        "softmax" => {
            let dot = |i| (0..first.dims[1]).map(|j| first.at(i, j) * y[0].at(i, j)).sum::<f64>();
            vec![full(&|i, j| y[0].at(i, j) * (first.at(i, j) - dot(i)))]
        }
        "reduce_sum" => vec![Matrix::of(x[0].dims, |_, _| first.data[0])],
        "mean" | "reduce_mean" => vec![Matrix::of(x[0].dims, |_, _| first.data[0] / x[0].data.len() as f64)],
        "transpose2" => vec![first.transposed()],
        "reshape2" => vec![Matrix { dims: x[0].dims, data: first.data.clone() }],
        "concat" => {
            let starts = x.iter().scan(0, |at, x| Some(std::mem::replace(at, *at + x.dims[1])));
            starts.zip(x).map(|(from, x)| first.columns(from, x.dims[1])).collect()
        }
        "split" => {
            let mut dx = Matrix::of(x[0].dims, |_, _| 0.0);
            let mut from = 0;
            for dy in dy {
                let (at, end) = (from, from + dy.dims[1]);
                let wide = |i, j| if (at..end).contains(&j) { dy.at(i, j - at) } else { 0.0 };
                dx.add(&Matrix::of(x[0].dims, wide));
                from = end;
            }
            vec![dx]
        }
        other => panic!("no plain gradient of `{other}`"),
    }
}

/// A program that has run, with every value of its variables.
pub(crate) struct Tape<'a> {
    program: &'a Program,
    values: Vec<Matrix>,
    /// The variable of each value.
    of: Vec<Var>,
    /// The values that each operator has read and written.
    steps: Vec<(Vec<usize>, Vec<usize>)>,
    first: HashMap<Var, usize>,
    last: HashMap<Var, usize>,
    /// Variables that were read before any operator wrote them, or that none writes.
    given: HashSet<Var>,
}

impl<'a> Tape<'a> {
    /// Runs a program. `fixed` variables have the values of that other run, whatever the operators compute.
    pub(crate) fn new(
        program: &'a Program,
        at: &HashMap<String, Matrix>,
        fixed: Option<(&Tape<'_>, &HashSet<Var>)>,
    ) -> Tape<'a> {
        let mut tape = Tape {
            program,
            values: vec![],
            of: vec![],
            steps: vec![],
            first: HashMap::new(),
            last: HashMap::new(),
            given: HashSet::new(),
        };
        let mut names: Vec<&String> = at.keys().collect();
        names.sort();
        for name in names {
            if let Some(var) = program.find(name) {
                tape.define(var, at[name].clone(), fixed);
                tape.given.insert(var);
            }
        }
        let mut met = HashSet::new();
        for op in &program.root().ops {
            let reads: Vec<usize> = op.reads().map(|v| tape.last[&v]).collect();
            met.extend(op.reads());
            let desc = |v: Var| program.root().vars.get(&v).and_then(|desc| desc.dims.known()).unwrap();
            let outs: Vec<Var> = op.writes().collect();
            let shape = Matrix::new(&desc(outs[0]), vec![]).dims;
            let inputs: Vec<&Matrix> = reads.iter().map(|i| &tape.values[*i]).collect();
            let mut made = forward(op, &inputs, shape).into_iter();
            let mut writes = vec![];
            for var in outs {
                if met.insert(var) {
                    tape.given.remove(&var);
                }
                // Slots that record a shape have no elements.
                let empty = Matrix { dims: [0, 0], data: vec![] };
                writes.push(tape.define(var, made.next().unwrap_or(empty), fixed));
            }
            tape.steps.push((reads, writes));
        }
        tape
    }

    fn define(&mut self, var: Var, value: Matrix, fixed: Option<(&Tape<'_>, &HashSet<Var>)>) -> usize {
        let id = self.values.len();
        self.values.push(match fixed {
            Some((other, vars)) if vars.contains(&var) => other.values[id].clone(),
            _ => value,
        });
        self.of.push(var);
        self.first.entry(var).or_insert(id);
        self.last.insert(var, id);
        id
    }

    /// The final value of a variable.
    pub(crate) fn value(&self, name: &str) -> &Matrix {
        &self.values[self.last[&self.program.find(name).unwrap()]]
    }

    /// Whether the initial value of a variable is read.
    pub(crate) fn is_given(&self, var: Var) -> bool {
        self.given.contains(&var)
    }

    /// The gradients of `Σ weight · target` with respect to some variables, through no variable in `cut`: with respect
    /// to the initial value if it was read, else to the last one.
    pub(crate) fn gradients(
        &self,
        targets: &[(&str, Matrix)],
        asked: &[&str],
        cut: &HashSet<Var>,
    ) -> Vec<Vec<f64>> {
        let zeros = |i: usize| Matrix::of(self.values[i].dims, |_, _| 0.0);
        let mut grads: Vec<Matrix> = (0..self.values.len()).map(zeros).collect();
        for (name, weight) in targets {
            let var = self.program.find(name).unwrap();
            if !cut.contains(&var) {
                grads[self.last[&var]].add(weight);
            }
        }
        for (op, (reads, writes)) in self.program.root().ops.iter().zip(&self.steps).rev() {
            let values = |ids: &[usize]| ids.iter().map(|i| &self.values[*i]).collect::<Vec<_>>();
            let dy: Vec<Matrix> = writes.iter().map(|i| grads[*i].clone()).collect();
            for (i, dx) in reads.iter().zip(backward(op, &values(reads), &values(writes), &dy)) {
                if !cut.contains(&self.of[*i]) {
                    grads[*i].add(&dx);
                }
            }
        }
        let place = |name: &&str| {
            let var = self.program.find(name).unwrap();
            if self.given.contains(&var) { self.first[&var] } else { self.last[&var] }
        };
        asked.iter().map(|name| grads[place(name)].data.clone()).collect()
    }
}
