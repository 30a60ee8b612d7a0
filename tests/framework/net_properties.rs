//! Properties of nets, over random trees with nested nets and steps over time: gradients of a tree equal those of the
//! lowered program to the bit, and central differences.

use std::{cell::Cell, fmt};

use autobwd::{
    BlockId, DType, Error, ErrorKind, Executor, Feed, Meta, Program, Result, Scope, Tensor, VarDesc,
    backward::GradientOptions,
    gradients,
    net::{NetOp, Operator, RnnOp, backward},
    verify,
};
use autobwd_ops::{
    activation::{Scale, Tanh},
    elementwise::{ElementwiseAdd, ElementwiseMul, Minus},
    fill::FillAnyLike,
    matmul::MatmulV2,
    shape::{Concat, Split, Stack, Unstack},
    sum::Sum,
    trigonometry::Sin,
};
use proptest::{collection::vec, strategy::Strategy};

use crate::support::{
    derivatives::near,
    nets::{bits, by_net},
    random_programs::check,
};

/// Inputs of trees, with their shapes.
const INPUTS: [(&str, [usize; 2]); 4] = [("v", [2, 3]), ("w", [2, 3]), ("row", [1, 3]), ("square", [3, 3])];
/// Gradients of the two outputs.
const SEEDS: [&str; 2] = ["y0@GRAD", "y1@GRAD"];

/// Random choices.
#[derive(Clone)]
struct Choices(Vec<usize>);
impl fmt::Debug for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Draw::new(self).tree() {
            Ok(drawn) => write!(f, "{} without {:?}", drawn.tree, drawn.no_grad),
            Err(e) => write!(f, "{e}"),
        }
    }
}

fn choices() -> impl Strategy<Value = Choices> {
    vec(0..1000_usize, 20..100).prop_map(Choices)
}

struct Drawn {
    tree: Operator,
    /// Variables without gradient.
    no_grad: Vec<String>,
    /// Variables without gradient within steps.
    inner: Vec<String>,
}

struct Draw<'a> {
    choices: std::slice::Iter<'a, usize>,
    names: usize,
    inner: Vec<String>,
}

/// Readable values of shape `[2, 3]`.
type Values = Vec<String>;

impl Draw<'_> {
    fn new(choices: &Choices) -> Draw<'_> {
        Draw { choices: choices.0.iter(), names: 0, inner: vec![] }
    }

    /// A number below `n`; 0 when no choices are left.
    fn below(&mut self, n: usize) -> usize {
        self.choices.next().map_or(0, |choice| choice % n)
    }

    fn name(&mut self, what: &str) -> String {
        self.names += 1;
        format!("{what}{}", self.names)
    }

    fn one_of(&mut self, values: &[String]) -> String {
        values[self.below(values.len())].clone()
    }

    /// One of the last values, so that most values are used.
    fn late(&mut self, values: &[String]) -> String {
        self.one_of(&values[values.len().saturating_sub(4)..])
    }

    fn tree(&mut self) -> Result<Drawn> {
        let mut values: Values = vec!["v".into(), "w".into()];
        let mut ops = self.operators(&mut values, 2)?;
        for out in ["y0", "y1"] {
            let x = self.late(&values);
            ops.push(Operator::of(Tanh { x, out: out.to_string() }));
        }
        let mut net = NetOp::new("net", ops)?;
        let mut no_grad = vec![];
        let others = net.outputs().into_iter().filter(|name| !name.starts_with('y')).map(String::from);
        match self.below(2) {
            // The others are not needed outside: either they are no outputs, or they are in the no-grad set.
            0 => no_grad.extend(others),
            _ => net = net.returning(["y0", "y1"])?,
        }
        for _ in 0..self.below(4).saturating_sub(1) {
            let name = self.one_of(&values);
            no_grad.push(if self.below(3) == 0 { "row".into() } else { name });
        }
        no_grad.retain(|name| name != "row" || net.inputs().contains(&"row"));
        no_grad.retain(|name| !["v", "w"].contains(&&**name) || net.inputs().contains(&&**name));
        Ok(Drawn { tree: net.into(), no_grad, inner: std::mem::take(&mut self.inner) })
    }

    /// Draws some operators; adds the values that they write.
    fn operators(&mut self, values: &mut Values, depth: usize) -> Result<Vec<Operator>> {
        let mut ops = vec![];
        for _ in 0..1 + self.below(5) {
            let kinds = if depth > 0 { 15 } else { 10 };
            let (a, b, kind) = (self.late(values), self.one_of(values), self.below(kinds));
            let out = self.name("t");
            let half = |x: String, out: String| {
                Operator::of(Scale { x, out, scale: 0.5, bias: 0.1, bias_after_scale: true })
            };
            match kind {
                0 => ops.push(Operator::of(Tanh { x: a, out: out.clone() })),
                1 => ops.push(Operator::of(Sin { x: a, out: out.clone() })),
                2 => ops.push(Operator::of(Minus { x: a, y: b, out: out.clone() })),
                3 => {
                    let product = self.name("p");
                    ops.push(Operator::of(ElementwiseMul { x: a, y: b, out: product.clone(), axis: -1 }));
                    ops.push(half(product, out.clone()));
                }
                4 => {
                    let sum = self.name("s");
                    ops.push(Operator::of(Sum { x: vec![a.clone(), b, a], out: sum.clone() }));
                    ops.push(half(sum, out.clone()));
                }
                5 => ops.push(Operator::of(ElementwiseAdd {
                    x: a,
                    y: "row".into(),
                    out: out.clone(),
                    axis: -1,
                })),
                6 => {
                    let product = self.name("p");
                    let (y, trans_x, trans_y) = ("square".into(), false, false);
                    ops.push(Operator::of(MatmulV2 { x: a, y, out: product.clone(), trans_x, trans_y }));
                    ops.push(Operator::of(Tanh { x: product, out: out.clone() }));
                }
                7 => {
                    // One of them is used.
                    let (joined, other) = (self.name("j"), self.name("o"));
                    ops.push(Operator::of(Concat {
                        x: vec![a, b],
                        out: joined.clone(),
                        axis: 0,
                        axis_tensor: None,
                    }));
                    let pieces = vec![out.clone(), other];
                    ops.push(Operator::of(Split {
                        x: joined,
                        out: pieces,
                        axis: 0,
                        num: 2,
                        sections: vec![],
                        axis_tensor: None,
                        sections_tensor_list: vec![],
                    }));
                }
                8 => ops.push(Operator::of(FillAnyLike { x: a, out: out.clone(), value: 0.25, dtype: None })),
                9 => {
                    ops.push(Operator::of(ElementwiseMul { x: a, y: "w".into(), out: out.clone(), axis: -1 }))
                }
                10 => {
                    let inner = self.operators(values, depth - 1)?;
                    ops.push(NetOp::new(self.name("net"), inner)?.into());
                    continue;
                }
                _ => {
                    self.steps(values, depth, &mut ops)?;
                    continue;
                }
            }
            values.push(out);
        }
        Ok(ops)
    }

    /// A step net over stacked sequences of values, which are then split again.
    fn steps(&mut self, values: &mut Values, depth: usize, ops: &mut Vec<Operator>) -> Result<()> {
        let count = 1 + self.below(3);
        let (mut inner, mut inputs, mut memories) = (vec!["w".to_string()], vec![], vec![]);
        inner.push(self.one_of(values));
        for _ in 0..1 + self.below(2) {
            let (sequence, x) = (self.name("xs"), self.name("x"));
            let parts = (0..count).map(|_| self.late(values)).collect();
            ops.push(Operator::of(Stack { x: parts, y: sequence.clone(), axis: 0 }));
            inputs.push((sequence, x.clone()));
            inner.push(x);
        }
        for _ in 0..self.below(3) {
            let (pre, constant) = (self.name("pre"), self.name("zero"));
            let boot = match self.below(3) {
                0 => {
                    let (x, out) = (self.one_of(values), constant.clone());
                    ops.push(Operator::of(FillAnyLike { x, out, value: 0.5, dtype: None }));
                    constant
                }
                _ => self.one_of(values),
            };
            memories.push((boot, pre.clone()));
            inner.push(pre);
        }
        let given = inner.len();
        let step = self.operators(&mut inner, depth - 1)?;
        if inner.len() == given {
            return Ok(());
        }
        if self.below(3) == 0 {
            let local = inner[2..].to_vec();
            let name = self.one_of(&local);
            self.inner.push(name);
        }
        let written = &inner[given..];
        let mut rnn = RnnOp::new(self.name("rnn"), NetOp::new("step", step)?)?;
        for (sequence, x) in inputs {
            rnn = rnn.step_input(sequence, x)?;
        }
        for (boot, pre) in memories {
            rnn = rnn.memory(boot, pre, self.late(written))?;
        }
        let mut taken = vec![];
        for _ in 0..1 + self.below(2) {
            let sequence = self.name("zs");
            rnn = rnn.step_output(self.late(written), sequence.clone())?;
            let y: Vec<String> = (0..count).map(|_| self.name("z")).collect();
            // Some of them are used.
            values.push(y[self.below(count)].clone());
            taken.push(Operator::of(Unstack { x: sequence, y, axis: 0, num: count as i32 }));
        }
        ops.push(rnn.into());
        ops.append(&mut taken);
        Ok(())
    }
}

fn start() -> Result<Scope> {
    let mut scope = Scope::new();
    let seeds = SEEDS.map(|name| (name, [2, 3]));
    for (k, (name, dims)) in INPUTS.into_iter().chain(seeds).enumerate() {
        let numbers = (0..dims[0] * dims[1]).map(|i| (i as f64 * 1.3 + k as f64 * 0.7).sin()).collect();
        scope.set(name, Tensor::from_vec(dims, numbers)?);
    }
    Ok(scope)
}

fn metas() -> [(&'static str, Meta); 4] {
    INPUTS.map(|(name, dims)| (name, Meta::new(DType::F64, dims)))
}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::new(ErrorKind::Check, text())) }
}

/// Gradients of the inputs, by the lowered program.
fn by_program(drawn: &Drawn, inputs: &[&str]) -> Result<Vec<Option<Tensor>>> {
    let mut program = drawn.tree.lower(&metas())?;
    let targets = ["y0", "y1"];
    for seed in SEEDS {
        let var = program.var(&format!("given.{seed}"));
        program.root_mut().vars.insert(var, VarDesc::data(DType::F64, [2, 3].into()));
    }
    let given = [Some("given.y0@GRAD"), Some("given.y1@GRAD")];
    // In every step, a name stands for another variable.
    let named = |program: &Program, name: &str| -> Vec<String> {
        let vars = program.root().vars.keys().map(|var| program.name(*var));
        vars.filter(|var| var.rsplit('/').next() == Some(name)).map(String::from).collect()
    };
    let no_grad: Vec<String> = drawn.no_grad.iter().flat_map(|name| named(&program, name)).collect();
    let no_grad: Vec<&str> = no_grad.iter().map(String::as_str).collect();
    let options = GradientOptions { target_gradients: Some(&given), no_grad: &no_grad, ops: None };
    let found = gradients(&mut program, &targets, inputs, &options)?.entries();
    verify(&program)?;
    let scope = start()?;
    let mut feeds = vec![];
    for (name, _) in INPUTS {
        if program.find(name).is_some_and(|var| program.lookup(BlockId::ROOT, var).is_some()) {
            feeds.push((name.to_string(), scope.get(name)?));
        }
    }
    for seed in SEEDS {
        feeds.push((format!("given.{seed}"), scope.get(seed)?));
    }
    let feeds: Vec<(&str, &dyn Feed)> =
        feeds.iter().map(|(name, tensor): &(String, &Tensor)| (&**name, tensor as _)).collect();
    let names: Vec<&str> = found.iter().flatten().map(|var| program.name(*var)).collect();
    let mut fetched = Executor::with_threads(1).run(&program, &mut Scope::new(), &feeds, &names)?.into_iter();
    Ok(found.iter().map(|var| var.and_then(|_| fetched.next())).collect())
}

fn inputs(tree: &Operator) -> Vec<&'static str> {
    INPUTS.into_iter().map(|(name, _)| name).filter(|name| tree.inputs().contains(name)).collect()
}

#[test]
fn net_gradient_is_bit_identical_to_its_program() {
    let [several, zeros, recurrent, compared] = [const { Cell::new(0) }; 4];
    let count = |cell: &Cell<usize>, found: bool| cell.set(cell.get() + usize::from(found));
    check(500, choices(), |choices: Choices| {
        let mut drawn = Draw::new(&choices).tree()?;
        let inner = std::mem::take(&mut drawn.inner);
        drawn.no_grad.extend(inner);
        let inputs = inputs(&drawn.tree);
        let program = by_program(&drawn, &inputs)?;
        let no_grad: Vec<&str> = drawn.no_grad.iter().map(String::as_str).collect();
        let gradient = backward(&drawn.tree, &no_grad)?.to_string();
        count(&several, gradient.contains("@RENAME@1"));
        count(&zeros, gradient.contains("fill_zeros_like"));
        count(&recurrent, gradient.contains("rnn_grad"));
        program.iter().for_each(|grad| count(&compared, grad.is_some()));
        for whole in [false, true] {
            let net = by_net(&drawn.tree, &drawn.no_grad, start()?, &inputs, whole)?;
            for ((name, program), net) in inputs.iter().zip(&program).zip(&net) {
                let same = match (program, net) {
                    (Some(program), Some(net)) => bits(program) == bits(net),
                    // Too few steps for the gradient of a memory to arrive.
                    (None, Some(net)) => net.to_f64s().iter().all(|x| *x == 0.0),
                    (None, None) => true,
                    (Some(_), None) => false,
                };
                let numbers = |t: &Option<Tensor>| t.as_ref().map(Tensor::to_f64s);
                ensure(same, || {
                    let (program, net) = (numbers(program), numbers(net));
                    format!("`{name}`: {program:?} by program, {net:?} by net\n{gradient}")
                })?;
            }
        }
        Ok(())
    });
    let seen = [several, zeros, recurrent, compared].map(Cell::into_inner);
    assert!(seen.iter().zip([300, 80, 80, 600]).all(|(seen, least)| *seen >= least), "{seen:?}");
}

/// A tree that does not write the variables with these names, so that they keep their values.
fn without(op: &Operator, names: &[String]) -> Result<Operator> {
    Ok(match op {
        Operator::Op(op) => {
            let mut op = op.clone();
            let written = op.outputs.values_mut().flatten();
            written.filter(|name| names.contains(name)).for_each(|name| name.push_str(".moved"));
            op.into()
        }
        Operator::Net(net) => {
            let ops = net.ops().iter().map(|op| without(op, names)).collect::<Result<Vec<_>>>()?;
            NetOp::new(net.name(), ops)?.into()
        }
        other => other.clone(),
    })
}

#[test]
fn net_gradient_equals_central_differences() {
    check(100, choices(), |choices: Choices| {
        let drawn = Draw::new(&choices).tree()?;
        let inputs = inputs(&drawn.tree);
        let grads = by_net(&drawn.tree, &drawn.no_grad, start()?, &inputs, false)?;
        let mut executor = Executor::with_threads(1);
        let mut scope = start()?;
        drawn.tree.run(&mut executor, &mut scope)?;
        let tree = without(&drawn.tree, &drawn.no_grad)?;
        let metas: Vec<(&str, Meta)> = scope.iter().map(|(name, value)| (name, value.meta())).collect();
        let program = tree.lower(&metas)?;
        let read: Vec<&str> = tree.inputs();
        for (name, grad) in inputs.iter().zip(grads) {
            if drawn.no_grad.contains(&name.to_string()) {
                ensure(grad.is_none(), || format!("`{name}` has a gradient"))?;
                continue;
            }
            let at = scope.get(name)?.to_f64s();
            let found = grad.map_or(vec![0.0; at.len()], |grad| grad.to_f64s());
            let mut expected = vec![];
            for k in 0..at.len() {
                let mut side = |step: f64| -> Result<f64> {
                    let mut moved = at.clone();
                    moved[k] += step;
                    let moved = Tensor::from_vec(scope.get(name)?.dims(), moved)?;
                    let mut feeds = vec![];
                    for n in &read {
                        let value = if n == name { &moved } else { scope.get(n)? };
                        feeds.push((*n, value as &dyn Feed));
                    }
                    let targets = ["y0", "y1"];
                    let fetched = executor.run(&program, &mut Scope::new(), &feeds, &targets)?;
                    let mut sum = 0.0;
                    for (y, value) in targets.iter().zip(fetched) {
                        let seed = scope.get(&format!("{y}@GRAD"))?.to_f64s();
                        sum += value.to_f64s().iter().zip(seed).map(|(y, g)| y * g).sum::<f64>();
                    }
                    Ok(sum)
                };
                expected.push((side(1e-5)? - side(-1e-5)?) / 2e-5);
            }
            ensure(near(&found, &expected, 1e-8), || format!("`{name}`: {found:?}, expected {expected:?}"))?;
        }
        Ok(())
    });
}
