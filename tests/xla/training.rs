//! Training steps on a device have the losses of the executor.

use autobwd::{Meta, OpInfoMap, Result};
use autobwd_benches::workload::Workload;
use autobwd_xla::{
    DeviceExecutor, DeviceScope, Source,
    lower::{LowerRequest, lower},
};
use clap::ValueEnum;

use crate::devices;

#[test]
fn training_steps_have_the_expected_losses() -> Result<()> {
    let (ops, devices) = (OpInfoMap::linked()?, devices(1)?);
    for workload in Workload::value_variants().iter().copied() {
        let step = workload.model()?;
        let program = step.net.program()?;
        let metas = |name: &str| -> Option<Meta> { step.scope.get(name).ok().map(|value| value.meta()) };
        let fetches = [step.loss.as_str()];
        let lowered = lower(&program, ops, &LowerRequest::new(&[], &metas, &fetches))?;
        lowered.check()?;
        assert!(lowered.arguments.iter().all(|argument| argument.source == Source::State));

        let Some(devices) = &devices else { continue };
        let (mut executor, mut scope) = (DeviceExecutor::new(), DeviceScope::new(&devices[0]));
        scope.upload(&step.scope)?;
        let step = |_| executor.run(&program, &mut scope, &[], &fetches)?[0].item();
        let losses = (0..10).map(step).collect::<Result<Vec<f64>>>()?;
        assert!(workload.expects(losses[0], losses[9]), "{}: {losses:?}", workload.name());
    }
    Ok(())
}
