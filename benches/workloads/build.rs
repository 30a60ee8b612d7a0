//! Time and memory of building the backward pass, per operator of the forward pass.

use std::{env, process::Command, time::Instant};

use autobwd::{Attr, Backward, DType, Dims, OpDesc, OpInfoMap, Program, Var, VarDesc, append_backward};
use autobwd_benches::{BenchResult, median, ms, output, peak_resident_bytes, resident_bytes, round};
use clap::ValueEnum;
use serde_json::json;

/// Kinds of forward parts.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum GraphShape {
    /// Consecutive linear layers: products and sums in turn, each with a parameter.
    Chain,
    /// One parameter that every operator reads.
    Fanout,
}

impl GraphShape {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
    }

    /// The number of parameters of a forward part with `ops` operators.
    fn parameters(self, ops: usize) -> usize {
        match self {
            GraphShape::Chain => ops.saturating_sub(1),
            GraphShape::Fanout => 1,
        }
    }
}

/// Milliseconds for which programs are built anew for each measurement.
const MEASURED_MS: f64 = 1500.0;
const DIM: usize = 8;

/// One line for each size and shape, each from a process of its own, so that they share no memory.
pub(crate) fn run(ops: &[usize], shape: Option<GraphShape>, check: bool) -> BenchResult<()> {
    if let ([ops], Some(shape)) = (ops, shape) {
        return measure(*ops, shape, check);
    }
    let shapes = shape.map_or(vec![GraphShape::Chain, GraphShape::Fanout], |shape| vec![shape]);
    for (shape, ops) in shapes.iter().flat_map(|shape| ops.iter().map(move |ops| (shape, ops))) {
        let mut command = Command::new(env::current_exe()?);
        command.args(["build", "--ops", &ops.to_string(), "--shape", &shape.name()]);
        print!("{}", output(command.args(check.then_some("--check")))?);
    }
    Ok(())
}

fn measure(ops: usize, shape: GraphShape, check: bool) -> BenchResult<()> {
    let (map, start) = (OpInfoMap::linked()?, Instant::now());
    let (mut micros, mut bytes) = (vec![], None);
    while micros.len() < 3 || ms(start) < MEASURED_MS {
        let mut program = forward(ops, shape);
        let before = resident_bytes();
        let one = Instant::now();
        let found =
            append_backward(&mut program, "loss", &Backward { ops: Some(map), ..Default::default() })?;
        micros.push(ms(one) * 1e3 / ops as f64);
        bytes.get_or_insert(resident_bytes().saturating_sub(before) as f64 / ops as f64);
        let (found, parameters) = (found.pairs.len(), shape.parameters(ops));
        if check && found != parameters {
            return Err(format!("{found} gradients for {parameters} parameters").into());
        }
    }
    let line = json!({
        "lib": "autobwd",
        "workload": "build",
        "shape": shape.name(),
        "ops": ops,
        "us_per_op": round(median(micros), 3),
        "bytes_per_op": round(bytes.unwrap_or_default(), 0),
        "peak_rss_mb": round(peak_resident_bytes() as f64 / 1024.0 / 1024.0, 1),
    });
    println!("{line}");
    Ok(())
}

/// A forward part of `ops` operators; the last one writes `loss`.
fn forward(ops: usize, shape: GraphShape) -> Program {
    let mut program = Program::new();
    let x = declare(&mut program, "x", VarDesc::data(DType::F32, Dims::from([DIM, DIM])));
    match shape {
        GraphShape::Chain => chain(&mut program, x, ops.saturating_sub(1)),
        GraphShape::Fanout => fanout(&mut program, x, ops.saturating_sub(1)),
    }
    program
}

fn chain(program: &mut Program, x: Var, ops: usize) {
    let mut h = x;
    for i in 0..ops {
        let (name, ty, dims) = match i % 2 {
            0 => (format!("layer_{}.w", i / 2), "mul", Dims::from([DIM, DIM])),
            _ => (format!("layer_{}.b", i / 2), "elementwise_add", Dims::from([DIM])),
        };
        let parameter = declare(program, &name, VarDesc::parameter(DType::F32, dims));
        let out = declare(program, &format!("tmp_{i}"), hidden());
        let op = OpDesc::new(ty).input("X", [h]).input("Y", [parameter]).output("Out", [out]);
        program.root_mut().ops.push(op);
        h = out;
    }
    mean(program, &[h]);
}

fn fanout(program: &mut Program, x: Var, ops: usize) {
    let w = declare(program, "w", VarDesc::parameter(DType::F32, Dims::from([DIM, DIM])));
    let mut h = x;
    for i in 0..ops {
        let out = declare(program, &format!("tmp_{i}"), hidden());
        let op = OpDesc::new("elementwise_mul").input("X", [h]).input("Y", [w]).output("Out", [out]);
        program.root_mut().ops.push(op.attr("axis", Attr::I32(-1)));
        h = out;
    }
    mean(program, &[h]);
}

fn mean(program: &mut Program, of: &[Var]) {
    let loss = declare(program, "loss", VarDesc::new(DType::F32, Dims::default()));
    program.root_mut().ops.push(OpDesc::new("mean").input("X", of.iter().copied()).output("Out", [loss]));
}

fn hidden() -> VarDesc {
    VarDesc::new(DType::F32, Dims::from([DIM, DIM]))
}

fn declare(program: &mut Program, name: &str, desc: VarDesc) -> Var {
    let var = program.var(name);
    program.root_mut().vars.insert(var, desc);
    var
}
