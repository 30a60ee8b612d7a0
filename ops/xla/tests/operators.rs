//! Every sample of every operator, and its gradients: which of them have a form in StableHLO (`operators.txt`), and
//! whether a device computes the same as the kernels. Tests on a device need a PJRT plugin for the CPU, whose path is in
//! the environment variable `AUTOBWD_PJRT_PLUGIN`; without it they are ignored.
//!
//! The path may name the plugin of a GPU, of whose memory a process takes at most the share `DEVICE_MEMORY=0.05`. Products
//! of float32 fail there unless TF32 is off.
//!
//! `OPERATORS=softmax,conv2d cargo test -p autobwd-xla --test operators` runs the samples of these alone and prints their
//! text; `UPDATE=1` writes the table and the texts of rules (`rules.mlir`).

use std::{collections::BTreeMap, collections::BTreeSet, fmt::Write as _};

use autobwd::{
    __private::internals::*, DType, ErrorKind, Executor, Meta, OpInfoMap, Program, Result, Scope, Tensor,
    check, gradients, op::Rules, program::VarKind,
};
use autobwd_xla::{
    Lowered,
    lower::{Hlo, LowerRequest, linked_rules, lower},
    pjrt::{ClientOptions, CompileOptions, Device},
};

use common::{compare, plugin, run, tests};

mod common;

fn main() {
    let tests = tests![
        rules_have_the_known_text,
        operators_have_the_known_lowering,
        refusals_name_the_operator_and_the_reason,
        operators_are_also_lowered_for_16_bits,
        products_read_16_bits_also_in_compositions,
    ];
    let on_devices = tests![
        operators_compute_the_same_in_single_precision,
        operators_compute_the_same_in_double_precision,
        operators_compute_nearly_the_same_in_16_bits,
    ];
    run(tests, on_devices)
}

/// A program with values of its inputs.
struct Case {
    program: Program,
    values: Vec<(String, Tensor)>,
    fetches: Vec<String>,
}

impl Case {
    fn forward(sample: &check::Sample, float: DType) -> Option<Case> {
        let (program, values) = check::sample_program(sample, float).ok()?;
        let outputs = program.root().ops.iter().flat_map(|op| op.outputs.iter());
        // Outputs that remember a shape, without elements, exist for gradients alone.
        let written =
            outputs.filter(|(slot, _)| slot.as_str() != "XShape").flat_map(|(_, vars)| vars.to_vec());
        let is_tensor = |var: &autobwd::Var| {
            program.root().vars.get(var).is_some_and(|desc| desc.kind == VarKind::Tensor)
        };
        let fetched = written.filter(is_tensor);
        let fetches: Vec<String> =
            fetched.map(|var| program.name(var).to_string()).collect::<BTreeSet<_>>().into_iter().collect();
        (!fetches.is_empty()).then_some(Case { program, values, fetches })
    }

    fn backward(&self) -> Option<Case> {
        let mut program = self.program.clone();
        let inputs: Vec<&str> = self.values.iter().map(|(name, _)| name.as_str()).collect();
        let targets: Vec<&str> = self.fetches.iter().map(String::as_str).collect();
        let found = gradients(&mut program, &targets, &inputs, &Default::default()).ok()?;
        let fetches: Vec<String> =
            found.pairs.iter().map(|(_, gradient)| program.name(*gradient).to_string()).collect();
        (!fetches.is_empty()).then(|| Case { program, values: self.values.clone(), fetches })
    }

    /// Dtypes and shapes of the inputs, with the elements of those in slots declared `constant`.
    fn feeds(&self) -> Vec<(&str, Meta)> {
        let ops = OpInfoMap::linked().expect("operators are linked");
        let mut constants = BTreeSet::new();
        for op in self.program.blocks().iter().flat_map(|block| &block.ops) {
            let inputs = ops.get(&op.ty).map_or(&[][..], |info| info.schema().inputs);
            for slot in inputs.iter().filter(|slot| slot.constant) {
                constants.extend(op.inputs.get(slot.name).iter().copied());
            }
        }
        let meta = |(name, value): &(String, Tensor)| {
            let is_constant = self.program.find(name).is_some_and(|var| constants.contains(&var));
            value.meta().with_constant(is_constant.then(|| value.to_f64s().into()))
        };
        self.values.iter().map(|value| (value.0.as_str(), meta(value))).collect()
    }

    fn fetches(&self) -> Vec<&str> {
        self.fetches.iter().map(String::as_str).collect()
    }

    fn expected(&self) -> Result<Vec<Tensor>> {
        let (executor, mut scope) = (Executor::with_threads(1).loop_limit(10_000), Scope::new());
        let mut session = executor.prepare(&self.program, &mut scope, &self.feeds(), &self.fetches())?;
        self.values.iter().try_for_each(|(name, value)| session.feed(name, value))?;
        session.run(&mut scope)?;
        self.fetches.iter().map(|name| session.fetch(name)).collect()
    }

    fn lowered(&self) -> Result<Lowered> {
        let (feeds, fetches) = (self.feeds(), self.fetches());
        let request = LowerRequest::new(&feeds, &|_| None, &fetches);
        let lowered = lower(&self.program, OpInfoMap::linked()?, &request)?;
        lowered.check()?;
        Ok(lowered)
    }

    /// The results on a device.
    fn run(&self, lowered: &Lowered, device: &Device) -> Result<Vec<Tensor>> {
        // Values, not speed, are of interest.
        let options = CompileOptions::new(std::slice::from_ref(device))
            .flag("xla_backend_optimization_level", 0)
            .flag("xla_llvm_disable_expensive_passes", true);
        let executable = device.client().compile(&lowered.text, &options)?;
        let buffers: Vec<_> =
            self.values.iter().map(|(_, value)| device.upload(value)).collect::<Result<_>>()?;
        executable.run(&buffers)?.iter().map(|buffer| buffer.download()).collect()
    }

    /// The difference of the results on a device from those of the kernels, if there is one.
    fn difference(&self, lowered: &Lowered, device: &Device, tolerance: f64) -> Option<String> {
        let expected = self.expected().ok()?;
        let results = match self.run(lowered, device) {
            Ok(results) => results,
            Err(e) => return Some(e.to_string()),
        };
        self.fetches.iter().zip(results.iter().zip(&expected)).find_map(|(name, (result, expected))| {
            let difference = difference(result, expected);
            (difference > tolerance)
                .then(|| format!("`{name}` differs by {difference:e}: {result:?}, not {expected:?}"))
        })
    }
}

/// The largest difference, relative to the largest element or 1.
fn difference(x: &Tensor, y: &Tensor) -> f64 {
    if (x.dims(), x.dtype()) != (y.dims(), y.dtype()) {
        return f64::INFINITY;
    }
    let (x, y) = (x.to_f64s(), y.to_f64s());
    let largest = y.iter().filter(|y| y.is_finite()).fold(1.0, |m: f64, y| m.max(y.abs()));
    let each =
        x.iter().zip(&y).map(|(x, y)| if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() });
    each.fold(0.0, |worst: f64, d| if d <= worst { worst } else { d }) / largest
}

/// What became of the samples of an operator.
#[derive(Default)]
struct Row {
    samples: [usize; 2],
    lowered: [usize; 2],
    refused: BTreeSet<String>,
}

/// How operators of a type are lowered.
fn way(rules: &Rules<Hlo>, ty: &str) -> &'static str {
    let Some(info) = OpInfoMap::linked().ok().and_then(|ops| ops.get(ty).ok()) else { return "unknown" };
    match () {
        () if info.is_control() => "control flow",
        () if rules.contains_key(ty) => "rule",
        () if info.lanes().is_some() => "formula",
        () => "composition",
    }
}

/// The reason of an error, without the operator's place.
fn reason(e: &autobwd::Error) -> String {
    let text = e.to_string();
    let line = text.lines().nth(1).unwrap_or(&text).trim();
    let ty = line.split('`').nth(1).unwrap_or_default();
    let why = line.split_once("): ").map_or(line, |(_, why)| why);
    let why = why.split_once("in StableHLO: ").map_or(why, |(_, why)| why);
    format!("{ty}: {why}")
}

/// The lines of a function, without source lines.
fn body(lowered: &Lowered) -> String {
    let lines = lowered.text.lines().skip_while(|line| !line.ends_with('{') || line.starts_with("module"));
    let without_site = |line: &str| match line.trim_start().starts_with("//") {
        true => line.split(',').next().unwrap_or_default().to_string(),
        false => line.to_string(),
    };
    lines.skip(1).take_while(|line| *line != "  }").map(|line| without_site(line) + "\n").collect()
}

/// The longest text of a rule that is compared.
const LINES: usize = 40;

/// The programs of a sample and of its gradient.
type Cases = [Option<Case>; 2];

/// The programs of the samples that the kernels compute, by operator: of all, or of those that `OPERATORS` names.
fn samples(float: DType) -> impl Iterator<Item = (&'static str, Cases)> {
    let only = std::env::var("OPERATORS").ok();
    let is_chosen = move |ty: &str| only.as_ref().is_none_or(|only| only.split(',').any(|name| name == ty));
    check::samples().into_iter().filter(move |sample| is_chosen(sample.op())).filter_map(move |sample| {
        let forward = Case::forward(&sample, float)?;
        forward.expected().ok()?;
        // Which element gets the gradient of NaN is not defined.
        let has_nan = forward.values.iter().any(|(_, value)| value.to_f64s().iter().any(|x| x.is_nan()));
        let backward = if has_nan { None } else { forward.backward() };
        Some((sample.op(), [Some(forward), backward]))
    })
}

/// The shortest text of a sample in which a rule occurs, for each rule.
fn rules_have_the_known_text() -> Result<()> {
    let (rules, mut shortest) = (linked_rules(), BTreeMap::<String, String>::new());
    for sample in check::samples() {
        let Some(forward) = Case::forward(&sample, DType::F32) else { continue };
        let backward = forward.backward();
        for case in [Some(forward), backward].into_iter().flatten() {
            let Ok(lowered) = case.lowered() else { continue };
            let text = body(&lowered);
            for ty in text.lines().filter_map(|line| line.trim_start().strip_prefix("// ")) {
                if rules.contains_key(ty) && shortest.get(ty).is_none_or(|known| text.len() < known.len()) {
                    shortest.insert(ty.to_string(), text.clone());
                }
            }
        }
    }
    shortest.retain(|_, text| text.lines().count() <= LINES);
    let texts: BTreeSet<&String> = shortest.values().collect();
    let mut all = String::new();
    for text in texts {
        let of: Vec<&str> =
            shortest.iter().filter(|(_, known)| *known == text).map(|(ty, _)| ty.as_str()).collect();
        let _ = writeln!(all, "// Rules: {}\n{text}", of.join(", "));
    }
    compare("rules.mlir", &all);
    Ok(())
}

/// The table of operators: how each is lowered, and why samples are refused.
fn operators_have_the_known_lowering() -> Result<()> {
    let is_shown = std::env::var_os("OPERATORS").is_some();
    let mut table = BTreeMap::<&str, Row>::new();
    for (ty, cases) in samples(DType::F64) {
        for (k, case) in cases.iter().enumerate() {
            let Some(case) = case else { continue };
            let row = table.entry(ty).or_default();
            row.samples[k] += 1;
            match case.lowered() {
                Ok(lowered) => {
                    row.lowered[k] += 1;
                    if is_shown {
                        println!("{}\n{}", case.program, lowered.text);
                    }
                }
                Err(e) => _ = row.refused.insert(reason(&e)),
            }
        }
    }
    let mut text = String::from(
        "operator: how it is lowered; samples lowered of all; gradients lowered of all; the reasons for the others\n",
    );
    let rules = linked_rules();
    for (ty, Row { samples, lowered, refused }) in &table {
        let [forward, backward] = [0, 1].map(|k| format!("{} of {}", lowered[k], samples[k]));
        let how = if lowered[0] > 0 { way(rules, ty) } else { "refused" };
        let _ = write!(text, "{ty}: {how}; {forward}; {backward}");
        refused.iter().for_each(|why| _ = write!(text, "; {why}"));
        text.push('\n');
    }
    if is_shown {
        println!("{text}");
    } else {
        compare("operators.txt", &text);
    }
    Ok(())
}

/// Compares the values of samples on a device with those of the kernels, within a tolerance.
/// Compares every `step`-th sample, and its gradient; operators that are `exempt` differ.
fn compare_values(float: DType, tolerance: f64, step: usize, exempt: &[&str]) -> Result<()> {
    let options = match std::env::var("DEVICE_MEMORY").ok().and_then(|share| share.parse::<f32>().ok()) {
        Some(share) => ClientOptions::new().set("memory_fraction", share).set("preallocate", false),
        None => ClientOptions::new(),
    };
    let device = plugin()?.client(&options)?.device(0)?;
    let step = if std::env::var_os("OPERATORS").is_some() { 1 } else { step };
    let (mut failures, mut differing) = (vec![], BTreeSet::new());
    for (ty, cases) in samples(float).step_by(step) {
        for (case, which) in cases.iter().zip(["", "gradient of "]) {
            let Some(case) = case else { continue };
            let Ok(lowered) = case.lowered() else { continue };
            if let Some(text) = case.difference(&lowered, &device, tolerance) {
                if exempt.contains(&ty) {
                    differing.insert(ty);
                    continue;
                }
                failures.push(format!("{which}{ty}, {float}: {text}\n{}", case.program));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n\n"));
    // A part of the samples may leave them out.
    assert!(
        step > 1 || std::env::var_os("OPERATORS").is_some() || exempt.iter().all(|ty| differing.contains(ty)),
        "of {exempt:?}, only {differing:?} differ"
    );
    Ok(())
}

fn operators_compute_the_same_in_single_precision() -> Result<()> {
    compare_values(DType::F32, 1e-5, 1, &[])
}

fn operators_compute_the_same_in_double_precision() -> Result<()> {
    // A lowering is the same in both precisions; all samples would take minutes more.
    compare_values(DType::F64, 1e-11, 2, &[])
}

/// Devices sum in another order, and may round between operators that the host fuses.
fn operators_compute_nearly_the_same_in_16_bits() -> Result<()> {
    // Their gradients subtract rounded results or means. XLA keeps more digits of these.
    let sensitive = ["layer_norm", "logcumsumexp", "rnn"];
    compare_values(DType::BF16, 5e-2, 1, &sensitive)?;
    // Rules are the same for both; all samples would take minutes.
    compare_values(DType::F16, 1e-2, 8, &sensitive)
}

/// Compositions compute in single precision, but converted factors are multiplied as they were.
fn products_read_16_bits_also_in_compositions() -> Result<()> {
    let mut products = 0;
    for sample in check::samples().into_iter().filter(|sample| sample.op() == "matmul_v2") {
        let Some(case) = Case::forward(&sample, DType::BF16).as_ref().and_then(Case::backward) else {
            continue;
        };
        for line in case.lowered()?.text.lines().filter(|line| line.contains("dot_general")) {
            let (factors, _) = line.rsplit_once("->").expect("the line ends with types");
            assert_eq!(factors.matches("bf16").count(), 2, "{line}");
            products += 1;
        }
    }
    assert!(products > 10, "{products}");
    Ok(())
}

/// What is lowered in single precision is also lowered in 16 bits.
fn operators_are_also_lowered_for_16_bits() -> Result<()> {
    for sample in check::samples() {
        for float in [DType::F16, DType::BF16] {
            let [half, single] = [float, DType::F32].map(|float| Case::forward(&sample, float));
            let (Some(half), Some(single)) = (half, single) else { continue };
            let gradients = (half.backward(), single.backward());
            let cases = [(Some(half), Some(single)), gradients];
            for (half, single) in cases.into_iter().filter_map(|(half, single)| half.zip(single)) {
                if single.lowered().is_ok() && half.expected().is_ok() {
                    half.lowered()?;
                }
            }
        }
    }
    Ok(())
}

fn refusals_name_the_operator_and_the_reason() -> Result<()> {
    let mut count = 0;
    for sample in check::samples() {
        let Some(forward) = Case::forward(&sample, DType::F32) else { continue };
        if forward.expected().is_err() {
            continue;
        }
        let backward = forward.backward();
        for case in [Some(forward), backward].into_iter().flatten() {
            let Err(e) = case.lowered() else { continue };
            let text = e.to_string();
            let mut ops = case.program.blocks().iter().flat_map(|block| &block.ops);
            let is_named = ops.any(|op| text.contains(&format!("`{}`", op.ty)));
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{text}");
            assert!(is_named && !text.contains("autobwd bug"), "{text}");
            count += 1;
        }
    }
    assert!(count > 0, "no sample is refused");
    Ok(())
}
