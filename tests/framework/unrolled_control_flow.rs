//! Random loops, branches and recurrences, compared with unrolled programs.

use autobwd::{
    Backward, Builder, DType, Executor, Expr, Program, Result, Scope, Tensor, append_backward, gradients,
    verify,
};
use autobwd_ops::{
    Init, Math, concat,
    control::{Branch, case, cond, scan, switch_case, while_loop},
};

use crate::support::control_flow::{keep_every, number};

/// One step of a random program. Numbers are indices of existing values, the inner ones last.
#[derive(Debug)]
enum Step {
    Mul(usize, usize),
    Add(usize, usize),
    Matmul(usize, usize),
    Tanh(usize),
    /// A loop over these values.
    Loop {
        times: i64,
        vars: Vec<usize>,
        body: Vec<Step>,
        next: Vec<usize>,
    },
    /// A branch that depends on the counter of the surrounding loop.
    Choose {
        below: i64,
        yes: (Vec<Step>, usize),
        no: (Vec<Step>, usize),
    },
    /// One of two branches, or a default, selected by the counter of the surrounding loop.
    Switch {
        /// By conditions: the first one that holds.
        ordered: bool,
        branches: Vec<(Vec<Step>, usize)>,
    },
    /// A recurrence over a sequence of these values.
    Scan {
        values: Vec<usize>,
        state: usize,
        reverse: bool,
        body: Vec<Step>,
        next: usize,
        out: usize,
    },
}

/// Pseudo-random numbers.
struct Dice {
    state: u64,
}
impl Dice {
    fn new(state: u64) -> Dice {
        Dice { state }
    }

    fn below(&mut self, n: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) % n as u64) as usize
    }

    fn steps(&mut self, mut known: usize, depth: usize) -> (Vec<Step>, usize) {
        let mut steps = vec![];
        for _ in 0..1 + self.below(3) {
            let step = self.step(known, depth);
            known += match &step {
                Step::Loop { vars, .. } => vars.len(),
                Step::Scan { values, .. } => values.len(),
                _ => 1,
            };
            steps.push(step);
        }
        (steps, known)
    }

    fn step(&mut self, known: usize, depth: usize) -> Step {
        // Later values are likelier, so that programs are connected.
        let pick = |dice: &mut Dice| known - 1 - dice.below(known).min(dice.below(known));
        match self.below(if depth == 0 { 4 } else { 9 }) {
            0 => Step::Mul(pick(self), pick(self)),
            1 => Step::Add(pick(self), pick(self)),
            2 => Step::Matmul(pick(self), pick(self)),
            3 => Step::Tanh(pick(self)),
            4 | 5 => {
                let vars: Vec<usize> = (0..1 + self.below(2)).map(|_| pick(self)).collect();
                let (body, inner) = self.steps(known + vars.len(), depth - 1);
                let next = vars.iter().map(|_| inner - 1 - self.below(3)).collect();
                Step::Loop { times: self.below(4) as i64, vars, body, next }
            }
            6 => {
                let branch = |dice: &mut Dice| {
                    let (body, inner) = dice.steps(known, depth - 1);
                    (body, inner - 1 - dice.below(2))
                };
                Step::Choose { below: 1, yes: branch(self), no: branch(self) }
            }
            7 => {
                let branches = (0..3).map(|_| {
                    let (body, inner) = self.steps(known, depth - 1);
                    (body, inner - 1 - self.below(2))
                });
                let branches = branches.collect();
                Step::Switch { ordered: self.below(2) == 0, branches }
            }
            _ => {
                let values = (0..1 + self.below(3)).map(|_| pick(self)).collect();
                let (state, reverse) = (pick(self), self.below(2) == 0);
                let (body, inner) = self.steps(known + 2, depth - 1);
                let (next, out) = (inner - 1 - self.below(2), inner - 1 - self.below(2));
                Step::Scan { values, state, reverse, body, next, out }
            }
        }
    }
}

/// The counter of the surrounding loop: a variable, or, in an unrolled program, a number.
#[derive(Clone)]
enum Counter {
    Variable(Expr),
    Number(i64),
}

fn say(net: &Builder, steps: &[Step], values: &mut Vec<Expr>, counter: &Counter) {
    for step in steps {
        let at = |i: &usize| values[*i].clone();
        let new = match step {
            Step::Mul(a, b) => vec![at(a) * at(b)],
            Step::Add(a, b) => vec![at(a) + at(b)],
            Step::Matmul(a, b) => vec![at(a).matmul(&at(b))],
            Step::Tanh(a) => vec![at(a).tanh()],
            Step::Loop { times, vars, body, next } => {
                let first: Vec<Expr> = vars.iter().map(at).collect();
                let run = |vars: &[Expr], counter: &Counter| -> Vec<Expr> {
                    let mut inner: Vec<Expr> = values.iter().chain(vars).cloned().collect();
                    say(net, body, &mut inner, counter);
                    next.iter().map(|i| inner[*i].clone()).collect()
                };
                match counter {
                    Counter::Variable(_) => {
                        let end = number(net, *times);
                        let all: Vec<Expr> = std::iter::once(number(net, 0)).chain(first).collect();
                        let last = while_loop(
                            &all,
                            |v| v[0].less_than(&end),
                            |v| {
                                let next = run(&v[1..], &Counter::Variable(v[0].clone()));
                                std::iter::once(&v[0] + 1.0).chain(next).collect()
                            },
                        );
                        last[1..].to_vec()
                    }
                    Counter::Number(_) => (0..*times).fold(first, |vars, i| run(&vars, &Counter::Number(i))),
                }
            }
            Step::Choose { below, yes, no } => {
                let run = |branch: &(Vec<Step>, usize)| -> Vec<Expr> {
                    let mut inner = values.clone();
                    say(net, &branch.0, &mut inner, counter);
                    vec![inner[branch.1].clone()]
                };
                match counter {
                    Counter::Variable(i) => cond(&i.less_than(&number(net, *below)), || run(yes), || run(no)),
                    Counter::Number(i) => run(if i < below { yes } else { no }),
                }
            }
            Step::Switch { ordered, branches } => {
                let run = |branch: &(Vec<Step>, usize)| -> Vec<Expr> {
                    let mut inner = values.clone();
                    say(net, &branch.0, &mut inner, counter);
                    vec![inner[branch.1].clone()]
                };
                let run_arm = &run;
                let arm = |i: usize| -> Branch<'_> { Box::new(move || run_arm(&branches[i])) };
                match counter {
                    Counter::Variable(i) if *ordered => {
                        let below = |n: i64| i.less_than(&number(net, n));
                        case(vec![(below(1), arm(0)), (below(2), arm(1))], arm(2))
                    }
                    Counter::Variable(i) => switch_case(i, vec![(1, arm(1)), (0, arm(0))], arm(2)),
                    Counter::Number(i) => run(&branches[(*i).min(2) as usize]),
                }
            }
            Step::Scan { values: parts, state, reverse, body, next, out } => {
                let parts: Vec<Expr> = parts.iter().map(at).collect();
                let run = |x: &Expr, state: &Expr| -> (Expr, Expr) {
                    let mut inner: Vec<Expr> = values.iter().chain([x, state]).cloned().collect();
                    say(net, body, &mut inner, counter);
                    (inner[*next].clone(), inner[*out].clone())
                };
                match counter {
                    Counter::Variable(_) => {
                        let rows = parts.iter().map(|x| x.reshape(&[1, 2, 2])).collect::<Vec<_>>();
                        let sequence = concat(&rows.iter().collect::<Vec<_>>(), 0);
                        let all = scan(&[sequence], &[at(state)], *reverse, |x, state| {
                            let (next, out) = run(&x[0], &state[0]);
                            (vec![next], vec![out])
                        });
                        let row = |i: usize| all[0].slice(0, i as i32, i as i32 + 1).reshape(&[2, 2]);
                        (0..parts.len()).map(row).collect()
                    }
                    Counter::Number(_) => {
                        let (mut state, mut found) = (at(state), vec![None; parts.len()]);
                        for i in 0..parts.len() {
                            let i = if *reverse { parts.len() - 1 - i } else { i };
                            let (next, out) = run(&parts[i], &state);
                            (state, found[i]) = (next, Some(out));
                        }
                        found.into_iter().flatten().collect()
                    }
                }
            }
        };
        values.extend(new);
    }
}

/// The loss and the gradients of three parameters.
fn run(steps: &[Step], control: bool) -> Result<Vec<Tensor>> {
    run_keeping(steps, control, 0)
}

/// The program of these steps, and its loss.
fn model(steps: &[Step], control: bool) -> Result<(Program, String)> {
    let net = Builder::new();
    let names = ["a", "b", "c"];
    let mut values = names
        .iter()
        .map(|name| net.parameter(name, DType::F64, &[2, 2], |w| Init::Constant(0.0).emit(w, 0)))
        .collect::<Vec<_>>();
    let counter = if control { Counter::Variable(number(&net, 0)) } else { Counter::Number(0) };
    say(&net, steps, &mut values, &counter);
    let last = values.last().expect("there are values").tanh();
    let terms = values[..3].iter().map(|w| w.square()).collect::<Vec<_>>();
    let loss = (&last + &terms[0] + (&terms[1] + &terms[2])).mean() * 1.0;
    let program = net.program()?.clone();
    Ok((program, loss.name()))
}

/// Runs it twice, with values for the parameters.
fn run_twice(program: &Program, fetches: &[String]) -> Result<Vec<Tensor>> {
    verify(program)?;
    let mut scope = Scope::new();
    for (i, name) in ["a", "b", "c"].iter().enumerate() {
        let numbers = (0..4).map(|k| 0.4 * ((3 * i + 2 * k) as f64 * 1.7 + 0.3).sin()).collect();
        scope.set(name, Tensor::from_vec([2, 2], numbers)?);
    }
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let mut executor = Executor::with_threads(1);
    let first = executor.run(program, &mut scope, &[], &fetches)?;
    // The second run reuses memory of the first.
    assert_eq!(executor.run(program, &mut scope, &[], &fetches)?, first);
    Ok(first)
}

fn run_keeping(steps: &[Step], control: bool, every: i32) -> Result<Vec<Tensor>> {
    let (mut program, loss) = model(steps, control)?;
    keep_every(&mut program, every);
    append_backward(&mut program, &loss, &Backward::default())?;
    run_twice(&program, &[loss, "a@GRAD".into(), "b@GRAD".into(), "c@GRAD".into()])
}

/// The second derivatives of the loss with respect to `b` and all parameters, summed over the elements of `b`.
fn run_second(steps: &[Step], control: bool) -> Result<Vec<Vec<f64>>> {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let (mut program, loss) = model(steps, control)?;
    gradients(&mut program, &[&loss], &NAMES, &Default::default())?;
    let second = gradients(&mut program, &["b@GRAD"], &NAMES, &Default::default())?.entries();
    let names: Vec<String> = second.iter().flatten().map(|v| program.name(*v).to_string()).collect();
    let mut found = run_twice(&program, &names)?.into_iter();
    // Without a path, the gradient is zero.
    let numbers =
        |there: &Option<_>| there.as_ref().and_then(|_| found.next()).map_or(vec![0.0; 4], |t| t.to_f64s());
    Ok(second.iter().map(numbers).collect())
}

fn assert_near(found: &[f64], expected: &[f64], what: impl std::fmt::Display) {
    let largest = expected.iter().fold(1e-300_f64, |max, x| max.max(x.abs()));
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * largest;
    assert!(found.iter().zip(expected).all(near), "{what}: {found:?}, {expected:?}");
}

#[test]
fn random_nested_programs_equal_unrolled_programs() {
    for seed in 0..120 {
        let (steps, _) = Dice::new(seed).steps(3, 2);
        let outcome = run(&steps, true).and_then(|found| Ok((found, run(&steps, false)?)));
        let (found, expected) = outcome.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{steps:#?}"));
        for (found, expected) in found.iter().zip(&expected) {
            assert_near(&found.to_f64s(), &expected.to_f64s(), format_args!("seed {seed}, {steps:#?}"));
        }
    }
}

#[test]
fn second_derivatives_equal_unrolled_programs() {
    for seed in 0..80 {
        let (steps, _) = Dice::new(seed).steps(3, 2);
        let outcome = run_second(&steps, true).and_then(|found| Ok((found, run_second(&steps, false)?)));
        let (found, expected) = outcome.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{steps:#?}"));
        assert_near(&found.concat(), &expected.concat(), format_args!("seed {seed}, {steps:#?}"));
    }
}

#[test]
fn recomputed_steps_are_bit_identical() {
    for seed in 0..60 {
        let (steps, _) = Dice::new(seed).steps(3, 2);
        let expected = run(&steps, true).unwrap();
        for every in [1, 2, 100] {
            let found = run_keeping(&steps, true, every);
            assert_eq!(
                found.unwrap_or_else(|e| panic!("seed {seed}: {e}")),
                expected,
                "seed {seed}, {every}"
            );
        }
    }
}
