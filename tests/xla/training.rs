//! Training steps on a device have the losses of the executor.

use autobwd::{Meta, OpInfoMap, Result};
use autobwd_benches::workload::Workload;
use autobwd_xla::{
    DeviceExecutor, DeviceScope, Source,
    lower::{LowerRequest, lower},
};
use clap::ValueEnum;

use crate::support::devices;

pub(crate) fn steps_are_lowered() -> Result<()> {
    for workload in Workload::value_variants() {
        let step = workload.model()?;
        let metas = |name: &str| -> Option<Meta> { step.scope.get(name).ok().map(|value| value.meta()) };
        let fetches = [step.loss.as_str()];
        let request = LowerRequest::new(&[], &metas, &fetches);
        let program = step.net.program()?;
        let lowered = lower(&program, OpInfoMap::linked()?, &request)?;
        lowered.check()?;
        assert!(lowered.arguments.iter().all(|argument| argument.source == Source::State));
    }
    Ok(())
}

pub(crate) fn steps_have_the_expected_losses() -> Result<()> {
    let devices = devices(1)?;
    for workload in Workload::value_variants() {
        let step = workload.model()?;
        let (program, fetches) = (step.net.program()?, [step.loss.as_str()]);
        let (mut executor, mut scope) = (DeviceExecutor::new(), DeviceScope::new(&devices[0]));
        scope.upload(&step.scope)?;
        let run = |_| executor.run(&program, &mut scope, &[], &fetches)?[0].item();
        let losses = (0..10).map(run).collect::<Result<Vec<f64>>>()?;
        assert!(workload.expects(losses[0], losses[9]), "{}: {losses:?}", workload.name());
    }
    Ok(())
}
