//! Random programs, which shrink when a property fails.

use std::fmt;

use autobwd::{Builder, DType, Executor, Expr, New, Result, Scope, emit};
use autobwd_ops::{Init, Math, concat, fill::FillAnyLike, increment::Increment};
use proptest::{
    collection::vec,
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestCaseError, TestRunner},
};

/// One operator, or a few: which one, its operands, and the use of its result.
type Step = (usize, [usize; 2], usize);

/// The random choices for a program and for calls on it.
#[derive(Clone)]
pub(crate) struct Recipe {
    steps: Vec<Step>,
    /// Choices among names.
    pub(crate) picks: Vec<usize>,
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match draw(self).net.program() {
            Ok(program) => write!(f, "{:?} for\n{program}", self.picks),
            Err(e) => write!(f, "{e}"),
        }
    }
}

const KINDS: usize = 17;

impl Recipe {
    /// The same, with a new name for every value.
    pub(crate) fn with_new_names(mut self) -> Recipe {
        self.steps.iter_mut().filter(|(.., fate)| [1, 2].contains(fate)).for_each(|(.., fate)| *fate = 3);
        self
    }

    /// The same, without detached values.
    pub(crate) fn without_detached(mut self) -> Recipe {
        self.steps.iter_mut().filter(|(.., fate)| *fate == 0).for_each(|(.., fate)| *fate = 3);
        self
    }
}

pub(crate) fn recipes() -> impl Strategy<Value = Recipe> {
    let any = || 0..1000_usize;
    let step = (0..KINDS, [any(), any()], 0..8_usize);
    (vec(step, 1..14), vec(any(), 20)).prop_map(|(steps, picks)| Recipe { steps, picks })
}

/// Checks a property of `cases` random values, the same in each run.
pub(crate) fn check<S: Strategy>(cases: u32, strategy: S, property: impl Fn(S::Value) -> Result<()>) {
    let config =
        Config { cases, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config)
        .run(&strategy, |value| property(value).map_err(|e| TestCaseError::fail(e.to_string())));
    if let Err(e) = outcome {
        panic!("{e}");
    }
}

/// Parameters of the programs with their shapes, all kept in the scope.
pub(crate) const PARAMETERS: [(&str, &[usize]); 4] =
    [("v", &[2, 3]), ("w", &[2, 3]), ("row", &[3]), ("square", &[3, 3])];
/// Values without gradient, in the shape of most values.
pub(crate) const GIVEN: [&str; 2] = ["g", "h"];

pub(crate) struct Drawn {
    pub(crate) net: Builder,
    /// Variables of shape `[2, 3]`, some written several times.
    pub(crate) values: Vec<String>,
    /// Has one element.
    pub(crate) loss: String,
}

impl Drawn {
    /// A scope with the initial values of the parameters.
    pub(crate) fn scope(&self) -> Result<Scope> {
        let mut scope = Scope::new();
        Executor::with_threads(1).run(&self.net.startup().program()?, &mut scope, &[], &[])?;
        Ok(scope)
    }
}

/// The program of a recipe.
pub(crate) fn draw(recipe: &Recipe) -> Drawn {
    let net = Builder::new();
    let (values, loss) = draw_on(&net, recipe);
    Drawn { net, values: values.iter().map(Expr::name).collect(), loss: loss.name() }
}

/// Random operators, each on random existing values: returns all values, and a loss. Values stay small.
pub(crate) fn draw_on(net: &Builder, recipe: &Recipe) -> (Vec<Expr>, Expr) {
    let uniform = |seed| move |w: &Expr| Init::Uniform(-1.0, 1.0).emit(w, seed);
    let mut leaves = vec![];
    for (seed, (name, dims)) in (1..).zip(PARAMETERS) {
        leaves.push(net.parameter(name, DType::F64, dims, uniform(seed)));
    }
    for (seed, name) in (5..).zip(GIVEN) {
        net.persistable(name, DType::F64, &[2, 3], uniform(seed));
    }
    let (row, square) = (leaves[2].clone(), leaves[3].clone());
    let mut values = leaves[..2].to_vec();
    for (kind, operands, fate) in &recipe.steps {
        let [a, b] = operands.map(|i| values[i % values.len()].clone());
        let new = match kind {
            0 => a.tanh(),
            1 => a.sin(),
            2 => a.sigmoid(),
            3 => &a * 0.7 + 0.1,
            4 => (&a + &b) * 0.5,
            5 => (&a - &b) * 0.5,
            6 => a.sin() * b.sin(),
            7 => &a / (b.square() + 2.0),
            8 => (&a + &row) * 0.5,
            9 => &row * &a,
            10 => a.matmul(&square).tanh(),
            11 => a.softmax(1),
            12 => &a - a.mean_over(&[]),
            13 => {
                let pieces = concat(&[&a, &b], 1).split(&[3, 1, 2], 1);
                if fate % 2 == 0 { &pieces[0] * &pieces[1] } else { pieces[0].clone() }
            }
            14 => a.transpose(&[1, 0]).reshape(&[2, 3]),
            15 => emit(Increment { x: (&a).into(), out: New, step: 0.25 }).out,
            _ => emit(FillAnyLike { x: (&a).into(), out: New, value: 0.5, dtype: None }).out,
        };
        match fate {
            0 => values.push(new.detach()),
            // Reuses the name, which the operator may just have read.
            1 => rename(&new, &a),
            2 => rename(&new, &b),
            _ => values.push(new),
        }
    }
    let pick = &values[recipe.picks[0] % values.len()];
    let loss = values[values.len() - 1].square().mean() + pick.sum(&[]);
    (values, loss)
}

/// Makes the last operator that writes `new` write `old` instead.
fn rename(new: &Expr, old: &Expr) {
    let mut program = new.builder().program().unwrap().clone();
    let root = program.root_mut();
    let args = root.ops.iter_mut().rev().flat_map(|op| op.outputs.args_mut());
    args.filter(|v| **v == new.var()).for_each(|v| *v = old.var());
    root.vars.remove(&new.var());
    new.builder().set_program(program);
}
