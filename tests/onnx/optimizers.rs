//! Training steps of every optimizer and option: written, read again, and trained with.

use autobwd::{DType, Executor};
use autobwd_benches::{
    relative,
    workload::{WorkloadModel, optimizer_steps},
};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::Model;

/// Kernels and nodes round differently, and an optimizer that divides by the root of a small mean square enlarges that.
#[test]
fn losses_and_states_are_equal_after_20_steps() {
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F64, 1e-10)] {
        for (name, WorkloadModel { net, scope, loss }) in optimizer_steps(dtype).unwrap() {
            let program = net.program().unwrap().clone();
            let mut model = Model { program, feeds: vec![], fetches: vec![loss], scope };
            let mut read = from_bytes(&to_bytes(&model).unwrap(), &LoadOptions::default()).unwrap();
            let before = model.scope.clone();
            let mut executor = Executor::with_threads(1);
            for step in 0..20 {
                let [expected, loss] = [&mut model, &mut read]
                    .map(|model| model.run(&mut executor, &[]).unwrap()[0].item().unwrap());
                let near = (loss - expected).abs() <= tolerance * expected.abs();
                assert!(near, "{name}, {dtype}, step {step}: loss {loss}, not {expected}");
            }
            let mut changed = 0;
            for (key, expected) in model.scope.iter().filter(|(key, _)| read.scope.get(key).is_ok()) {
                let value = read.scope.get(key).unwrap();
                let difference = relative(value, expected);
                assert!(difference <= tolerance, "{name}, {dtype}: `{key}` differs by {difference:e}");
                changed += usize::from(before.get(key).unwrap() != expected);
            }
            assert!(changed >= 4, "{name}, {dtype}: {changed} values change");
        }
    }
}
