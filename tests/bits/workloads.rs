//! The workloads of the benchmarks: losses and scopes of training steps.

use autobwd::{Executor, Result, Scope, Tensor};
use autobwd_benches::workload::{Workload, WorkloadModel};

use crate::{hashes::by_threads, parts::BitResult};

const STEPS: usize = 20;

/// The workloads that are quick also by exact emulation.
pub(crate) fn small(executors: &[Executor]) -> Result<Vec<BitResult>> {
    trained(executors, &[Workload::TinyMlp, Workload::ChainSmall])
}

/// The others.
pub(crate) fn large(executors: &[Executor]) -> Result<Vec<BitResult>> {
    let all = [Workload::Mlp, Workload::Lenet, Workload::ChainBig, Workload::Lstm, Workload::Gpt];
    trained(executors, &all)
}

fn trained(executors: &[Executor], workloads: &[Workload]) -> Result<Vec<BitResult>> {
    let mut results = vec![];
    for workload in workloads {
        let train = |executor: &Executor| {
            let WorkloadModel { net, mut scope, loss } = workload.model()?;
            let program = net.program()?;
            let mut session = executor.prepare(&program, &mut scope, &[], &[&loss])?;
            let mut values = vec![];
            for step in 1..=STEPS {
                session.run(&mut scope)?;
                values.push((format!("loss of step {step}"), session.fetch(&loss)?));
            }
            values.extend(values_of(&scope));
            Ok(values)
        };
        let found = executors.iter().map(train).collect::<Result<Vec<_>>>()?;
        results.extend(by_threads(&format!("{} ", workload.name()), executors, &found)?);
    }
    Ok(results)
}

/// All values of a scope by name.
pub(crate) fn values_of(scope: &Scope) -> Vec<(String, Tensor)> {
    let mut values: Vec<_> = scope.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    values.sort_by(|a, b| a.0.cmp(&b.0));
    values
}
