//! Latencies of a device, as JSON lines: `latency [MODULE.mlir]`.
//!
//! Uploads, downloads and runs of a tiny program; with a module, its compilation, its steps with zeros, and loading it
//! again. The plugin is that of the environment variable `AUTOBWD_PJRT_PLUGIN`. Each time is the median of many in
//! microseconds.

use std::{env, fs, time::Instant};

use autobwd::{DType, Error, ErrorKind, Result, Tensor};
use autobwd_xla::{
    Argument, DeviceScope, Lowered, Output,
    pjrt::{Client, Device, DeviceBuffer, Input, Plugin},
};

/// The median time of a call in microseconds.
fn median(calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(calls);
    for i in 0..calls + calls / 10 {
        let start = Instant::now();
        call()?;
        if i >= calls / 10 {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn report(what: &str, microseconds: f64) {
    println!("{{\"what\":\"{what}\",\"median_us\":{microseconds:.2}}}");
}

/// `w = w + x` for four elements.
fn step() -> Lowered {
    Lowered {
        text: "module { func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32> {tf.aliasing_output = 0 : i32})
          -> tensor<4xf32> {
            %next = stablehlo.add %w, %x : tensor<4xf32>
            return %next : tensor<4xf32> } }"
            .into(),
        arguments: vec![
            Argument::feed("x", DType::F32, [4]),
            Argument::state("w", DType::F32, [4]).donated(),
        ],
        results: vec![Output::state("w", DType::F32, [4])],
        replicas: 1,
        partitions: 1,
    }
}

fn copies(device: &Device) -> Result<()> {
    for (name, elements, calls) in [("16 bytes", 4, 20_000), ("1 MiB", 1 << 18, 500), ("64 MiB", 1 << 24, 20)]
    {
        let tensor = Tensor::zeros(DType::F32, &[elements])?;
        report(&format!("upload {name}"), median(calls, || device.upload(&tensor)?.wait())?);
        let buffer = device.upload(&tensor)?;
        report(&format!("download {name}"), median(calls, || buffer.download().map(drop))?);
    }
    Ok(())
}

fn tiny(device: &Device) -> Result<()> {
    let lowered = step();
    report("compile tiny", median(20, || lowered.compile(device).map(drop))?);
    let program = lowered.compile(device)?;
    let executable = program.executable();
    let x = device.upload(&Tensor::zeros(DType::F32, &[4])?)?;
    let mut w = Some(device.upload(&Tensor::zeros(DType::F32, &[4])?)?);
    report("run tiny and wait", median(20_000, || executable.run([&x, &x])?[0].wait())?);
    let donate = || {
        let own: Option<DeviceBuffer> = w.take();
        let inputs = [Some(Input::from(&x)), own.map(Input::from)];
        w = executable.run(inputs.into_iter().flatten())?.pop();
        w.as_ref().map_or(Ok(()), DeviceBuffer::wait)
    };
    report("run tiny with a donated argument and wait", median(20_000, donate)?);
    let mut scope = DeviceScope::new(device);
    scope.set("w", &Tensor::zeros(DType::F32, &[4])?)?;
    let fed = Tensor::zeros(DType::F32, &[4])?;
    report(
        "step: upload the feed, run, download the state",
        median(20_000, || {
            program.run(&mut scope, &[("x", &fed)], &[])?;
            scope.tensor("w").map(drop)
        })?,
    );
    Ok(())
}

/// Compiles a module, loads it again, and runs it with zeros.
fn module(client: &Client, device: &Device, path: &str) -> Result<()> {
    let text = fs::read_to_string(path).map_err(|e| Error::new(ErrorKind::Io, format!("`{path}`: {e}")))?;
    report("compile module", median(3, || device.compile(&text).map(drop))?);
    let executable = device.compile(&text)?;
    let bytes = executable.to_bytes()?;
    report("load saved module", median(5, || client.load_executable(&bytes).map(drop))?);
    println!("{{\"what\":\"saved module\",\"bytes\":{}}}", bytes.len());
    let memory = executable.memory()?;
    println!(
        "{{\"what\":\"memory\",\"temporaries\":{},\"arguments\":{}}}",
        memory.temporaries, memory.arguments
    );
    let parameters = executable.parameters();
    let inputs: Vec<DeviceBuffer> =
        parameters.iter().map(|p| device.upload(&Tensor::zeros(p.dtype, &p.dims)?)).collect::<Result<_>>()?;
    // Each step takes new copies of what it may reuse; only the run is timed.
    let mut times = vec![];
    for _ in 0..40 {
        let mut given = vec![];
        for (buffer, parameter) in inputs.iter().zip(parameters) {
            given.push(match parameter.donated {
                true => Input::from(device.upload(&Tensor::zeros(parameter.dtype, &parameter.dims)?)?),
                false => Input::from(buffer),
            });
        }
        let start = Instant::now();
        executable.run(given)?.iter().try_for_each(DeviceBuffer::wait)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    report("run module and wait", times[times.len() / 2]);
    Ok(())
}

fn main() -> Result<()> {
    let Some(plugin) = Plugin::from_env()? else {
        println!("AUTOBWD_PJRT_PLUGIN is not set");
        return Ok(());
    };
    let client = plugin.client(&Default::default())?;
    let device = client.device(0)?;
    copies(&device)?;
    tiny(&device)?;
    match env::args().nth(1) {
        Some(path) => module(&client, &device, &path),
        None => Ok(()),
    }
}
