//! Training steps on a device of XLA have the losses of the executor. The tests need a PJRT plugin for the CPU, whose path
//! is in the environment variable `AUTOBWD_PJRT_PLUGIN`; without it they lower the steps, say so and end.

use std::{collections::BTreeMap, io::Write as _};

use autobwd::{Meta, OpInfoMap};
use autobwd_benches::workload::Workload;
use autobwd_xla::{
    Lowered, Source, Target,
    lower::{LowerRequest, lower},
    pjrt::{ClientOptions, Device, DeviceBuffer, Plugin},
};
use clap::ValueEnum;

fn device() -> Option<Device> {
    let Some(plugin) = Plugin::from_env().unwrap() else {
        // The test runner captures `eprintln!` alone.
        let text = b"AUTOBWD_PJRT_PLUGIN is not set: training steps are lowered, but not run\n";
        std::io::stderr().write_all(text).unwrap();
        return None;
    };
    Some(plugin.client(&ClientOptions::new()).and_then(|client| client.device(0)).unwrap())
}

/// Losses of so many steps, the state staying on the device.
fn losses(
    device: &Device,
    lowered: &Lowered,
    mut state: BTreeMap<String, DeviceBuffer>,
    steps: usize,
) -> autobwd::Result<Vec<f64>> {
    let executable = device.compile(&lowered.text)?;
    let mut losses = vec![];
    for _ in 0..steps {
        let arguments: Vec<&DeviceBuffer> =
            lowered.arguments.iter().filter_map(|argument| state.get(&argument.name)).collect();
        let results = executable.run(arguments)?;
        for (output, buffer) in lowered.results.iter().zip(results) {
            match output.target {
                Target::Fetch => losses.push(buffer.download()?.item()?),
                Target::State => drop(state.insert(output.name.clone(), buffer)),
            }
        }
    }
    Ok(losses)
}

#[test]
fn training_steps_have_the_expected_losses() {
    let (ops, device) = (OpInfoMap::linked().unwrap(), device());
    for workload in Workload::value_variants().iter().copied() {
        let step = workload.model().unwrap();
        let program = step.net.program().unwrap();
        let scope = |name: &str| -> Option<Meta> { step.scope.get(name).ok().map(|value| value.meta()) };
        let fetches = [step.loss.as_str()];
        let lowered = lower(&program, ops, &LowerRequest::new(&[], &scope, &fetches))
            .unwrap_or_else(|e| panic!("{}: {e}", workload.name()));
        lowered.check().unwrap();
        assert!(lowered.arguments.iter().all(|argument| argument.source == Source::State));
        let Some(device) = &device else { continue };
        let upload = |name: &str| device.upload(step.scope.get(name).unwrap()).unwrap();
        let state = lowered.arguments.iter().map(|arg| (arg.name.clone(), upload(&arg.name))).collect();
        let losses =
            losses(device, &lowered, state, 10).unwrap_or_else(|e| panic!("{}: {e}", workload.name()));
        assert!(workload.expects(losses[0], losses[9]), "{}: {losses:?}", workload.name());
    }
}
