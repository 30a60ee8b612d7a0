//! Every case of the corpus is a named test: `cargo test -p autobwd-tests --test conformance_cases case::diamond`.
//!
//! The runner itself is tested, too: it must report every change of a golden case that passes.

use std::path::Path;

use autobwd::{DType, OpInfoMap, Tensor};
use autobwd_tests::conformance::{
    Compared, CorpusCase, CorpusEntry, Outcome, Refusal, check, load_folder, skip_reason,
};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Value, json};

type Changes = fn(&CorpusCase) -> Vec<(String, CorpusCase)>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ops = OpInfoMap::linked()?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut trials = vec![];
    for entry in load_folder(&folder, "")? {
        trials.push(case(entry, ops));
    }
    let changes: [(&str, Changes); 9] = [
        ("a_dropped_operator", drop_operator),
        ("swapped_operands_of_sum", swap_operands),
        ("another_name", rename),
        ("another_shape", |case| change_variables(case, |var| push(&mut var["shape"], json!(7)))),
        ("another_dtype", |case| {
            change_variables(case, |var| {
                let other = if var["dtype"] == "float64" { "float32" } else { "float64" };
                var["dtype"] = json!(other);
            })
        }),
        ("another_kind", |case| {
            change_variables(case, |var| {
                let other = if var["type"] == "tensor_array" { "lod_tensor" } else { "tensor_array" };
                var["type"] = json!(other);
            })
        }),
        ("another_attribute", change_attribute),
        ("another_value", change_value),
        ("another_dtype_of_a_value", change_value_dtype),
    ];
    for (name, change) in changes {
        let folder = folder.clone();
        trials.push(Trial::test(format!("reports::{name}"), move || reports(&passing(&folder)?, change)));
    }
    let here = folder.clone();
    trials.push(Trial::test("rule::a_call_must_be_refused_where_the_reference_refuses", move || {
        refusals(&passing(&here)?)
    }));
    trials.push(Trial::test("rule::without_maker_the_derivative_is_expected", move || {
        derivatives(&passing(&folder)?)
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

/// A case as a test, ignored if it cannot be compared yet. The binary, and `--ignored`, give the reason.
fn case(entry: CorpusEntry, ops: &'static OpInfoMap) -> Trial {
    let skipped = entry.case.as_ref().is_ok_and(|case| matches!(skip_reason(case, ops), Ok(Some(_))));
    let trial = Trial::test(format!("case::{}", entry.name), move || match entry.check(ops) {
        Outcome::Passed(_) => Ok(()),
        Outcome::Failed(why) | Outcome::Skipped(why) => Err(why.into()),
    });
    trial.with_ignored_flag(skipped)
}

/// The passing cases, with their comparisons.
fn passing(folder: &Path) -> Result<Vec<(CorpusCase, Compared)>, Failed> {
    let ops = OpInfoMap::linked()?;
    let cases = load_folder(folder, "")?.into_iter().filter_map(|entry| entry.case.ok());
    let passing = cases.filter_map(|case| match check(&case, ops) {
        Outcome::Passed(compared) => Some((case, compared)),
        _ => None,
    });
    Ok(passing.collect())
}

/// Changes every case in every possible way: each must fail.
fn reports(passing: &[(CorpusCase, Compared)], change: Changes) -> Result<(), Failed> {
    let ops = OpInfoMap::linked()?;
    let (mut count, mut missed) = (0, vec![]);
    for (case, _) in passing.iter().filter(|(_, compared)| compared.structure) {
        for (what, changed) in change(case) {
            count += 1;
            if !matches!(check(&changed, ops), Outcome::Failed(_)) {
                missed.push(format!("{}: {what}", case.name));
            }
        }
    }
    match (count, missed.as_slice()) {
        (0, _) => Err("there was nothing to change".into()),
        (_, []) => Ok(()),
        (_, missed) => {
            Err(format!("{} of {count} changes went unnoticed:\n{}", missed.len(), missed.join("\n")).into())
        }
    }
}

/// The operators of the root block after the call.
fn ops(case: &CorpusCase) -> &[Value] {
    let root = case.first.backward.as_ref().map(|program| &program["blocks"][0]["ops"]);
    root.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The case with one operator of the root block changed.
fn with_op(case: &CorpusCase, index: usize, change: impl FnOnce(&mut Value)) -> CorpusCase {
    let mut case = case.clone();
    if let Some(program) = &mut case.first.backward {
        change(&mut program["blocks"][0]["ops"][index]);
    }
    case
}

/// Names and positions of the variables that the call has added to the root block.
fn new_variables(case: &CorpusCase) -> Vec<(usize, String)> {
    let names = |program: &Value| -> Vec<String> {
        let vars = program["blocks"][0]["vars"].as_array();
        vars.into_iter().flatten().filter_map(|var| Some(var["name"].as_str()?.to_string())).collect()
    };
    let old = names(&case.first.forward);
    let all = case.first.backward.as_ref().map(names).unwrap_or_default();
    all.into_iter().enumerate().filter(|(_, name)| !old.contains(name)).collect()
}

fn push(list: &mut Value, element: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(element);
    }
}

fn drop_operator(case: &CorpusCase) -> Vec<(String, CorpusCase)> {
    let drop = |index: usize| {
        let mut changed = case.clone();
        if let Some(ops) = changed.first.backward.as_mut().and_then(|p| p["blocks"][0]["ops"].as_array_mut())
        {
            ops.remove(index);
        }
        (format!("operator {index}"), changed)
    };
    (0..ops(case).len()).map(drop).collect()
}

fn swap_operands(case: &CorpusCase) -> Vec<(String, CorpusCase)> {
    let mut changed = vec![];
    for (index, op) in ops(case).iter().enumerate().filter(|(_, op)| op["type"] == "sum") {
        if op["inputs"]["X"][0] != op["inputs"]["X"][1] {
            let swap = |op: &mut Value| {
                if let Some(operands) = op["inputs"]["X"].as_array_mut() {
                    operands.swap(0, 1);
                }
            };
            changed.push((format!("operator {index}"), with_op(case, index, swap)));
        }
    }
    changed
}

/// Renames a new variable throughout the program.
fn rename(case: &CorpusCase) -> Vec<(String, CorpusCase)> {
    fn walk(value: &mut Value, old: &str) {
        match value {
            Value::String(text) if text == old => text.push_str("_renamed"),
            Value::Array(list) => list.iter_mut().for_each(|value| walk(value, old)),
            Value::Object(map) => map.values_mut().for_each(|value| walk(value, old)),
            _ => {}
        }
    }
    let renamed = |(_, name): (usize, String)| {
        let mut changed = case.clone();
        if let Some(program) = &mut changed.first.backward {
            walk(program, &name);
        }
        (name, changed)
    };
    new_variables(case).into_iter().map(renamed).collect()
}

fn change_variables(case: &CorpusCase, change: fn(&mut Value)) -> Vec<(String, CorpusCase)> {
    let changed = |(index, name): (usize, String)| {
        let mut changed = case.clone();
        if let Some(program) = &mut changed.first.backward {
            change(&mut program["blocks"][0]["vars"][index]);
        }
        (name, changed)
    };
    new_variables(case).into_iter().map(changed).collect()
}

/// Changes each attribute that autobwd declares by the smallest amount.
fn change_attribute(case: &CorpusCase) -> Vec<(String, CorpusCase)> {
    let mut changed = vec![];
    for (index, op) in ops(case).iter().enumerate() {
        let info = op["type"].as_str().and_then(|ty| OpInfoMap::linked().ok()?.get(ty).ok());
        let declared = |name: &String| info.is_some_and(|info| info.schema().attr(name).is_some());
        for name in op["attrs"].as_object().into_iter().flat_map(|attrs| attrs.keys()).filter(|n| declared(n))
        {
            let change = |op: &mut Value| {
                op["attrs"][name]
                    .as_object_mut()
                    .into_iter()
                    .flatten()
                    .for_each(|(tag, value)| nudge(tag, value));
            };
            changed.push((format!("operator {index}, `{name}`"), with_op(case, index, change)));
        }
    }
    changed
}

/// The nearest other value.
fn nudge(tag: &str, value: &mut Value) {
    let next = match (tag, &*value) {
        ("float", Value::Number(x)) => {
            let x = x.as_f64().unwrap_or_default() as f32;
            json!(f64::from(f32::from_bits(x.to_bits() + 1)))
        }
        (_, Value::Bool(x)) => json!(!x),
        (_, Value::Number(x)) => json!(x.as_i64().unwrap_or_default() + 1),
        (_, Value::String(x)) => json!(format!("{x}1")),
        (tag, Value::Array(list)) => {
            let more = if tag == "strings" { json!("more") } else { json!(1) };
            Value::Array(list.iter().cloned().chain([more]).collect())
        }
        (_, other) => other.clone(),
    };
    *value = next;
}

/// Whether any tensor of the program has dtype float32.
fn computes_in_f32(case: &CorpusCase) -> bool {
    let blocks = case.first.forward["blocks"].as_array().map_or(&[][..], Vec::as_slice);
    let mut vars = blocks.iter().filter_map(|block| block["vars"].as_array()).flatten();
    vars.any(|var| var["dtype"] == "float32")
}

/// Changes values by three times their tolerance.
fn change_value(case: &CorpusCase) -> Vec<(String, CorpusCase)> {
    let step = if computes_in_f32(case) { 3e-6 } else { 3e-9 };
    let mut changed = vec![];
    for (index, (name, value)) in
        case.tensors.iter().enumerate().filter(|(_, (n, _))| n.starts_with("fetch/"))
    {
        let largest = value.to_f64s().iter().fold(1.0_f64, |max, x| max.max(x.abs()));
        let mut case = case.clone();
        if let Some(x) = case.tensors[index].1.slice_mut::<f64>().ok().and_then(<[f64]>::first_mut) {
            *x += step * largest;
            changed.push((name.clone(), case));
        }
    }
    changed
}

/// A gradient without a path in autobwd is zero, and has no dtype.
fn change_value_dtype(case: &CorpusCase) -> Vec<(String, CorpusCase)> {
    let mut changed = vec![];
    for (index, (name, value)) in
        case.tensors.iter().enumerate().filter(|(_, (n, _))| n.starts_with("fetch/"))
    {
        let numbers: Vec<f32> = value.to_f64s().into_iter().map(|x| x as f32).collect();
        if numbers.iter().all(|x| *x == 0.0) {
            continue;
        }
        if let (DType::F64, Ok(other)) = (value.dtype(), Tensor::from_vec(value.dims(), numbers)) {
            let mut case = case.clone();
            case.tensors[index].1 = other;
            changed.push((name.clone(), case));
        }
    }
    changed
}

/// Table A3: the class of an error does not matter, only that the call fails.
fn refusals(passing: &[(CorpusCase, Compared)]) -> Result<(), Failed> {
    let ops = OpInfoMap::linked()?;
    for (case, _) in passing.iter().filter(|(_, compared)| compared.structure) {
        let mut refusing = case.clone();
        refusing.first.error = Some(Refusal { class: "ValueError".into() });
        if !matches!(check(&refusing, ops), Outcome::Failed(_)) {
            return Err(format!("{}: the call succeeded, and the runner did not report it", case.name).into());
        }
    }
    Ok(())
}

/// Whether a sub-block has `stop_gradient`: central differences cannot hold values of a step constant.
fn stops_inside(case: &CorpusCase) -> bool {
    let blocks = case.first.forward["blocks"].as_array().map_or(&[][..], Vec::as_slice);
    let vars = blocks.iter().skip(1).filter_map(|block| block["vars"].as_array()).flatten();
    vars.into_iter().any(|var| var["stop_gradient"] == true && var["dtype"] == "float64")
}

/// Row 10: where the reference has no gradient, autobwd's gradients are compared with central differences, if necessary
/// at generated values.
fn derivatives(passing: &[(CorpusCase, Compared)]) -> Result<(), Failed> {
    let ops = OpInfoMap::linked()?;
    let mut count = 0;
    let suited = |case: &CorpusCase, compared: &Compared| compared.structure && !stops_inside(case);
    for (case, _) in passing.iter().filter(|(case, compared)| suited(case, compared)) {
        let mut unmade = case.clone();
        unmade.first.error = Some(Refusal { class: "RuntimeError".into() });
        (unmade.first.backward, unmade.first.result) = (None, None);
        (unmade.then, unmade.fetch) = (vec![], vec![]);
        // Integers stay: equal indices everywhere would tie maxima.
        unmade.tensors.retain(|(_, tensor)| !tensor.dtype().is_float());
        match check(&unmade, ops) {
            Outcome::Passed(compared) => count += compared.differences,
            Outcome::Failed(why) | Outcome::Skipped(why) => {
                return Err(format!("{}: {why}", case.name).into());
            }
        }
    }
    if count > 0 { Ok(()) } else { Err("nothing was compared".into()) }
}
