//! Programs of the conformance corpus on a device of XLA: those that have a form in StableHLO have the values of the
//! executor; `corpus.txt` names the others, with the reason. `UPDATE=1` writes it.
//!
//! `CASES=while` runs those whose names contain `while`, and prints their text.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    path::Path,
};

use autobwd::{__private::internals::*, Executor, Feed, Meta, OpInfoMap, Scope, Tensor};
use autobwd_tests::{
    compare,
    conformance::{CorpusRun, load_folder, prepare, skip_reason},
};
use autobwd_xla::{
    Lowered, Source, Target,
    lower::{LowerRequest, lower},
    pjrt::{Device, DeviceBuffer},
};

use crate::support::devices;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Relative to the largest element, or 1. Programs of single precision are compared with the second.
const TOLERANCE: [f64; 2] = [1e-9, 1e-4];

/// The feeds' dtypes and shapes, with the elements of those in slots declared `constant`.
fn feed_metas<'a>(run: &'a CorpusRun, ops: &OpInfoMap) -> Vec<(&'a str, Meta)> {
    let mut constants = BTreeSet::new();
    for op in run.program.blocks().iter().flat_map(|block| &block.ops) {
        let inputs = ops.get(&op.ty).map_or(&[][..], |info| info.schema().inputs);
        for slot in inputs.iter().filter(|slot| slot.constant) {
            constants.extend(op.inputs.get(slot.name).iter().copied());
        }
    }
    let meta = |(name, value): (&'a String, &Tensor)| {
        let is_constant = run.program.find(name).is_some_and(|var| constants.contains(&var));
        (name.as_str(), value.meta().with_constant(is_constant.then(|| value.to_f64s().into())))
    };
    run.feeds.iter().map(meta).collect()
}

/// The values of the executor: fetches, and the scope afterwards.
fn expected(run: &CorpusRun) -> autobwd::Result<(Vec<Tensor>, Scope)> {
    let mut scope = Scope::new();
    run.scope.iter().for_each(|(name, value)| scope.set(name, value.clone()));
    let feeds: Vec<(&str, &dyn Feed)> =
        run.feeds.iter().map(|(name, value)| (name.as_str(), value as _)).collect();
    let fetches: Vec<&str> = run.fetches.iter().map(String::as_str).collect();
    let values = Executor::with_threads(1).run(&run.program, &mut scope, &feeds, &fetches)?;
    Ok((values, scope))
}

/// The difference of the values on a device from those of the executor, if there is one.
fn difference(run: &CorpusRun, lowered: &Lowered, device: &Device) -> Outcome<Option<String>> {
    let (fetched, scope) = expected(run)?;
    let executable = device.compile(&lowered.text)?;
    let mut arguments = vec![];
    for argument in &lowered.arguments {
        let values = if argument.source == Source::Feed { &run.feeds } else { &run.scope };
        let value = values.get(&argument.name).ok_or_else(|| format!("no value of `{}`", argument.name))?;
        arguments.push(device.upload(value)?);
    }
    let results: Vec<DeviceBuffer> = executable.run(&arguments)?;
    let mut fetched = fetched.iter();
    for (output, result) in lowered.results.iter().zip(&results) {
        let expected = match output.target {
            Target::Fetch => fetched.next().cloned().ok_or("a result without a value")?,
            Target::State => scope.get(&output.name)?.clone(),
        };
        let result = result.download()?;
        let [double, single] = TOLERANCE;
        let is_single = run.program.blocks().iter().flat_map(|block| block.vars.values());
        let is_single = is_single.into_iter().any(|var| var.dtype == autobwd::DType::F32);
        let by = distance(&result, &expected);
        if by > if is_single { single } else { double } {
            let text = format!("`{}` differs by {by:e}: {result:?}, not {expected:?}", output.name);
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// The largest difference, relative to the largest element or 1.
fn distance(x: &Tensor, y: &Tensor) -> f64 {
    if (x.dims(), x.dtype()) != (y.dims(), y.dtype()) {
        return f64::INFINITY;
    }
    let (x, y) = (x.to_f64s(), y.to_f64s());
    let largest = y.iter().filter(|y| y.is_finite()).fold(1.0, |m: f64, y| m.max(y.abs()));
    let same = |x: f64, y: f64| x == y || (x.is_nan() && y.is_nan());
    let each = x.iter().zip(&y).map(|(x, y)| if same(*x, *y) { 0.0 } else { (x - y).abs() });
    each.fold(0.0, |worst: f64, d| if d <= worst { worst } else { d }) / largest
}

/// The reason of a refusal: its first obstacle, without the operator's place.
fn reason(error: &str) -> &str {
    let line = error.lines().nth(1).unwrap_or(error).trim();
    line.split_once("): ").map_or(line, |(_, why)| why)
}

/// The programs of the corpus that have results, or those whose names contain `CASES`.
fn programs() -> Outcome<Vec<(String, CorpusRun)>> {
    let (ops, filter) = (OpInfoMap::linked()?, std::env::var("CASES").unwrap_or_default());
    let mut programs = vec![];
    for entry in load_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"), &filter)? {
        let case = entry.case?;
        if skip_reason(&case, ops)?.is_none() {
            let run = prepare(&case, ops)?.filter(|run| !run.fetches.is_empty());
            programs.extend(run.map(|run| (entry.name, run)));
        }
    }
    Ok(programs)
}

fn lower_program(run: &CorpusRun) -> autobwd::Result<Lowered> {
    let ops = OpInfoMap::linked()?;
    let metas = feed_metas(run, ops);
    let scope = |name: &str| run.scope.get(name).map(Tensor::meta);
    let fetches: Vec<&str> = run.fetches.iter().map(String::as_str).collect();
    lower(&run.program, ops, &LowerRequest::new(&metas, &scope, &fetches))
}

pub(crate) fn programs_have_the_known_lowering() -> autobwd::Result<()> {
    let is_filtered = std::env::var_os("CASES").is_some();
    let (programs, mut refused) = (programs().unwrap(), BTreeMap::new());
    for (name, run) in &programs {
        match lower_program(run) {
            Ok(lowered) => {
                lowered.check()?;
                if is_filtered {
                    println!("{}\n{}", run.program, lowered.text);
                }
            }
            Err(e) => _ = refused.insert(name, reason(&e.to_string()).to_string()),
        }
    }
    let (count, lowered) = (programs.len(), programs.len() - refused.len());
    let mut text = format!("{lowered} of {count} programs are lowered; the others are refused:\n");
    text.extend(refused.iter().map(|(name, why)| format!("{name}: {why}\n")));
    if is_filtered {
        println!("{text}");
    } else {
        compare("xla/corpus.txt", &text);
    }
    Ok(())
}

pub(crate) fn programs_have_the_values_of_the_executor() -> autobwd::Result<()> {
    let (devices, mut failures) = (devices(1)?, vec![]);
    for (name, run) in programs().unwrap() {
        let Ok(lowered) = lower_program(&run) else { continue };
        let failure = difference(&run, &lowered, &devices[0]).unwrap_or_else(|e| Some(e.to_string()));
        failures.extend(failure.map(|text| format!("{name}: {text}")));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n\n"));
    Ok(())
}
