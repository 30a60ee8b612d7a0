//! Compares values with recorded ones, or with central differences if the reference's are wrong.

use std::collections::{BTreeMap, BTreeSet};

use autobwd::{DType, Executor, Feed, Program, Scope, Tensor, Var};

use super::{CorpusCase, Difference, build::CaseReplay, differences};

/// Above this difference, a recorded gradient is not the derivative.
const FD_LIMIT: f64 = 1e-4;
/// Value of an unknown dimension in a case without values.
const UNKNOWN_DIM: usize = 2;

/// Compares all values of a case, in one run of its final program. Returns the number of recorded values, and of
/// gradients compared with central differences.
pub(super) fn compare(case: &CorpusCase, replay: &CaseReplay<'_>) -> Result<(usize, usize), Difference> {
    let by_difference = by_difference(case, replay);
    if case.fetch.is_empty() && by_difference.is_empty() {
        return Ok((0, 0));
    }
    let precision = differences::Precision::of(&replay.program);
    let mut machine = Machine::new(case, &replay.program)?;
    let is_recorded = |name: &&String| !by_difference.iter().any(|wanted| wanted.golden == **name);
    for name in case.fetch.iter().filter(|name| replay.zeros.contains(name)) {
        let golden = case.values("fetch").find(|(n, _)| n == name).map(|(_, value)| value.to_f64s());
        let golden = golden.unwrap_or_default();
        close(name, "golden", &golden, &vec![0.0; golden.len()], precision.golden)?;
    }
    let is_there = |name: &&String| !replay.zeros.contains(name);
    let recorded: Vec<&String> = case.fetch.iter().filter(is_there).filter(is_recorded).collect();
    let own: Vec<String> = recorded.iter().map(|name| replay.name(name)).collect();
    let found = machine.run(&replay.program, &own)?;
    for (name, found) in recorded.iter().zip(&found) {
        let golden = case.values("fetch").find(|(n, _)| n == name).map(|(_, value)| value);
        let golden = golden.ok_or_else(|| Difference::new(format!("the case holds no value of `{name}`")))?;
        if (golden.dtype(), golden.dims()) != (found.dtype(), found.dims()) {
            let text = format!("`{name}` is {}, golden {}", found.meta(), golden.meta());
            return Err(Difference::new(text));
        }
        close(name, "golden", &golden.to_f64s(), &found.to_f64s(), precision.golden)?;
    }
    for wanted in &by_difference {
        let call = &replay.made[wanted.call].call;
        let found = machine.run(&replay.program, std::slice::from_ref(&wanted.own))?;
        let golden = differences::derivative(&mut machine, &replay.program, call, &wanted.var)?;
        let found: Vec<f64> = found.iter().flat_map(Tensor::to_f64s).collect();
        close(&wanted.golden, "central differences", &golden, &found, precision.tolerance)?;
    }
    Ok((recorded.len(), by_difference.len()))
}

/// A program of a case after all calls, ready to run.
#[derive(Debug)]
pub struct CorpusRun {
    /// The program.
    pub program: Program,
    /// Values of its inputs.
    pub feeds: BTreeMap<String, Tensor>,
    /// Contents of the scope.
    pub scope: BTreeMap<String, Tensor>,
    /// The recorded names, and the gradients that the calls return.
    pub fetches: Vec<String>,
}

impl CorpusRun {
    pub(super) fn of(case: &CorpusCase, replay: CaseReplay<'_>) -> Result<CorpusRun, Difference> {
        let Machine { feeds, kept, .. } = Machine::new(case, &replay.program)?;
        let answers = replay.made.iter().flat_map(|made| &made.answer).filter_map(|(_, grad)| grad.clone());
        let is_there = |name: &&String| !replay.zeros.contains(name);
        let recorded = case.fetch.iter().filter(is_there).map(|name| replay.name(name));
        let fetches = recorded.chain(answers).collect::<BTreeSet<_>>().into_iter().collect();
        Ok(CorpusRun { program: replay.program, feeds, scope: kept, fetches })
    }
}

/// A gradient without correct values in the case.
struct Wanted {
    golden: String,
    own: String,
    /// The call that requested it.
    call: usize,
    /// The variable whose gradient it is, in autobwd's names.
    var: String,
}

/// The gradients to compare with central differences: in a case with a quirk, those not known to be the derivative; and
/// all gradients of a call on which the reference failed.
fn by_difference(case: &CorpusCase, replay: &CaseReplay<'_>) -> Vec<Wanted> {
    let mut wanted = vec![];
    for (call, made) in replay.made.iter().enumerate().filter(|(_, made)| made.derivative) {
        for (var, grad) in made.answer.iter().filter_map(|(var, grad)| Some((var, grad.as_ref()?))) {
            wanted.push(Wanted { golden: grad.clone(), own: grad.clone(), call, var: var.clone() });
        }
    }
    let checked = |var: &str| case.fd_check.get(var).copied().flatten().is_some_and(|d| d <= FD_LIMIT);
    for name in case.fetch.iter().filter(|_| case.quirk.is_some()) {
        if let Some((call, var)) = differentiated(replay, name)
            && !checked(&var)
        {
            wanted.push(Wanted {
                golden: name.clone(),
                own: replay.name(name),
                call,
                var: replay.name(&var),
            });
        }
    }
    wanted
}

/// The call of a recorded gradient, and its variable: from the result, or by name in the first call.
fn differentiated(replay: &CaseReplay<'_>, name: &str) -> Option<(usize, String)> {
    let returned = replay.made.iter().enumerate().rev().find_map(|(call, made)| {
        let own = made.recorded.iter().find(|(_, grad)| grad.as_deref() == Some(name));
        own.map(|(var, _)| (call, var.clone()))
    });
    let by_name = || name.strip_suffix("@GRAD").map(|var| (0, var.to_string()));
    returned.or_else(by_name)
}

fn close(name: &str, what: &str, golden: &[f64], found: &[f64], tolerance: f64) -> Result<(), Difference> {
    if golden.len() != found.len() {
        let text = format!("`{name}` has {} elements, {what} {}", found.len(), golden.len());
        return Err(Difference::new(text));
    }
    let largest = golden.iter().fold(1.0_f64, |max, x| max.max(x.abs()));
    let allowed = tolerance * largest;
    for (i, (golden, found)) in golden.iter().zip(found).enumerate() {
        let same = golden == found || (golden.is_nan() && found.is_nan());
        let near = (golden - found).abs() <= allowed;
        if !same && !near {
            return Err(Difference::new(format!(
                "value `{name}`, element {i}\n  {what}: {golden:?}\n  autobwd: {found:?}\n  differ by {:e}, allowed are {allowed:e}",
                (golden - found).abs()
            )));
        }
    }
    Ok(())
}

/// An executor with all inputs of a case.
pub(super) struct Machine {
    executor: Executor,
    pub(super) feeds: BTreeMap<String, Tensor>,
    /// Contents of the scope at the start of a run.
    pub(super) kept: BTreeMap<String, Tensor>,
}

impl Machine {
    fn new(case: &CorpusCase, program: &Program) -> Result<Machine, Difference> {
        let all = |kind| case.values(kind).map(|(name, value)| (name.to_string(), value.clone())).collect();
        let mut machine = Machine { executor: Executor::new(), feeds: all("feed"), kept: all("param") };
        if case.fetch.is_empty() {
            machine.invent(program)?;
        }
        Ok(machine)
    }

    /// Generates the inputs of a case without values.
    fn invent(&mut self, program: &Program) -> Result<(), Difference> {
        let mut written: Vec<Var> = vec![];
        for op in &program.root().ops {
            for var in op.reads().filter(|v| !written.contains(v)) {
                // An unwritten gradient counts as zero.
                let desc = program.root().vars.get(&var).filter(|desc| desc.gradient_of.is_none());
                let Some(desc) = desc else { continue };
                let dims: Vec<usize> = desc.dims.iter().map(|d| d.get().unwrap_or(UNKNOWN_DIM)).collect();
                let value = invented(desc.dtype, &dims, var.index())?;
                let home = if desc.persistable { &mut self.kept } else { &mut self.feeds };
                home.entry(program.name(var).to_string()).or_insert(value);
            }
            written.extend(op.writes());
        }
        Ok(())
    }

    /// Runs a program from the initial state.
    pub(super) fn run(&mut self, program: &Program, fetch: &[String]) -> Result<Vec<Tensor>, Difference> {
        let mut scope = Scope::new();
        for (name, value) in &self.kept {
            scope.set(name, value.clone());
        }
        let feeds: Vec<(&str, &dyn Feed)> =
            self.feeds.iter().map(|(name, value)| (name.as_str(), value as _)).collect();
        let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
        Ok(self.executor.run(program, &mut scope, &feeds, &fetch)?)
    }
}

/// Numbers between 0.25 and 0.75, where most operators are smooth; zeros for integers.
fn invented(dtype: DType, dims: &[usize], seed: usize) -> Result<Tensor, Difference> {
    let number = |i: usize| 0.5 + 0.25 * ((1 + i + 7 * seed) as f64 * 1.37).sin();
    let numbers = 0..dims.iter().product();
    Ok(match dtype {
        DType::F64 => Tensor::from_vec(dims, numbers.map(number).collect())?,
        DType::F32 => Tensor::from_vec(dims, numbers.map(|i| number(i) as f32).collect())?,
        dtype => Tensor::zeros(dtype, dims)?,
    })
}
