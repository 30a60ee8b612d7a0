//! Lowered programs, compiled and run with named feeds, fetches and states.

use std::thread;

use autobwd::{DType, ErrorKind, Result, Scope, Tensor};
use autobwd_xla::{Argument, DeviceScope, Lowered, Output, pjrt::CompileOptions};

use crate::plugin::{client, device, tensor};

/// One step of `w = w + x * lr`, where `lr` is a state that stays. Fetches `w` before the step, and `x * lr`.
fn step() -> Lowered {
    Lowered {
        text: "module @step {
          func.func public @main(%x: tensor<2xf32>, %lr: tensor<f32>, %w: tensor<2xf32> {tf.aliasing_output = 2 : i32})
              -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
            %rate = stablehlo.broadcast_in_dim %lr, dims = [] : (tensor<f32>) -> tensor<2xf32>
            %update = stablehlo.multiply %x, %rate : tensor<2xf32>
            %next = stablehlo.add %w, %update : tensor<2xf32>
            return %w, %update, %next : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
          }
        }"
        .into(),
        arguments: vec![
            Argument::feed("x", DType::F32, [2]),
            Argument::state("lr", DType::F32, []),
            Argument::state("w", DType::F32, [2]).donated(),
        ],
        results: vec![
            Output::fetch("before", DType::F32, [2]),
            Output::fetch("update", DType::F32, [2]),
            Output::state("w", DType::F32, [2]),
        ],
        replicas: 1,
        partitions: 1,
    }
}

/// The states of a step.
fn states() -> Scope {
    let mut scope = Scope::new();
    scope.set("w", tensor(&[1.0, 2.0]));
    scope.set("lr", Tensor::scalar(0.5_f32).unwrap());
    scope
}

pub(crate) fn states_stay_on_the_device() -> Result<()> {
    let device = device()?;
    let program = step().compile(&device).unwrap();
    let (mut host, mut scope) = (states(), DeviceScope::new(&device));
    scope.upload(&host).unwrap();
    let addresses = |scope: &DeviceScope| ["w", "lr"].map(|name| scope.get(name).unwrap().address().unwrap());
    let before = addresses(&scope);
    let x = tensor(&[2.0, 4.0]);
    let fetched = program.run(&mut scope, &[("x", &x)], &["update", "before", "update"]).unwrap();
    assert_eq!(fetched, [tensor(&[1.0, 2.0]), tensor(&[1.0, 2.0]), tensor(&[1.0, 2.0])]);
    assert_eq!(program.run(&mut scope, &[("x", &x)], &[]).unwrap(), []);
    assert_eq!(program.run(&mut scope, &[("x", &x)], &["before"]).unwrap(), [tensor(&[3.0, 6.0])]);
    assert_eq!(addresses(&scope), before);
    scope.download(&mut host).unwrap();
    assert_eq!(host.get("w").unwrap(), &tensor(&[4.0, 8.0]));
    assert_eq!(scope.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["w", "lr"]);
    Ok(())
}

pub(crate) fn feeds_and_fetches_may_stay_on_the_device() -> Result<()> {
    let device = device()?;
    let program = step().compile(&device).unwrap();
    let mut scope = DeviceScope::new(&device);
    scope.upload(&states()).unwrap();
    let x = device.upload(&tensor(&[2.0, 4.0])).unwrap();
    for expected in [1.0, 2.0, 3.0] {
        let fetched = program.run_on_device(&mut scope, &[("x", &x)], &["update", "before"]).unwrap();
        assert_eq!(fetched[1].download().unwrap(), tensor(&[expected, 2.0 * expected]));
    }
    let e = program.run_on_device(&mut scope, &[("x", &x)], &["update", "update"]).unwrap_err();
    assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Fetch, "`update` is fetched twice"));
    Ok(())
}

pub(crate) fn donated_feed_of_the_caller_is_only_read() -> Result<()> {
    let device = device()?;
    let lowered = Lowered {
        text: "module { func.func @main(%x: tensor<2xf32> {jax.buffer_donor = true}) -> tensor<2xf32> {
          %y = stablehlo.add %x, %x : tensor<2xf32>
          return %y : tensor<2xf32> } }"
            .into(),
        arguments: vec![Argument::feed("x", DType::F32, [2]).donated()],
        results: vec![Output::fetch("y", DType::F32, [2])],
        replicas: 1,
        partitions: 1,
    };
    let (program, mut scope) = (lowered.compile(&device).unwrap(), DeviceScope::new(&device));
    let x = device.upload(&tensor(&[1.0, 2.0])).unwrap();
    let y = program.run_on_device(&mut scope, &[("x", &x)], &["y"]).unwrap();
    assert_eq!((x.download().unwrap(), y[0].download().unwrap()), (tensor(&[1.0, 2.0]), tensor(&[2.0, 4.0])));
    let y = program.run(&mut scope, &[("x", &tensor(&[1.0, 2.0]))], &["y"]).unwrap();
    assert_eq!(y, [tensor(&[2.0, 4.0])]);
    Ok(())
}

pub(crate) fn wrong_feeds_fetches_and_states_are_errors_that_leave_the_scope() -> Result<()> {
    let client = client(2)?;
    let device = client.device(0).unwrap();
    let program = step().compile(&device).unwrap();
    let mut scope = DeviceScope::new(&device);
    let (x, long) = (tensor(&[2.0, 4.0]), tensor(&[1.0, 2.0, 3.0]));
    let e = program.run(&mut scope, &[("x", &x)], &[]).unwrap_err();
    assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::NoValue, "the scope on cpu:0 has no `lr`"));
    scope.upload(&states()).unwrap();
    let mut message = |feeds: &[(&str, &Tensor)], fetches: &[&str]| {
        program.run(&mut scope, feeds, fetches).unwrap_err().to_string()
    };
    assert_eq!(message(&[], &[]), "`x` is not fed; the program needs float32 [2]");
    assert_eq!(
        message(&[("x", &long)], &[]),
        "`x` cannot be fed: the program needs float32 [2], not float32 [3]"
    );
    assert_eq!(message(&[("x", &x), ("x", &x)], &[]), "`x` is fed twice");
    assert_eq!(
        message(&[("z", &x)], &[]),
        "`z` cannot be fed: the program does not read it; did you mean `x`?"
    );
    assert_eq!(
        message(&[("x", &x)], &["befor"]),
        "`befor` cannot be fetched: it is no result of the compiled program; did you mean `before`?"
    );
    scope.set("w", &long).unwrap();
    let e = program.run(&mut scope, &[("x", &x)], &[]).unwrap_err();
    let expected = "`w` of the scope is float32 [3], and the program needs float32 [2]";
    assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Shape, expected));
    assert_eq!(scope.tensor("w").unwrap(), long);

    let second = client.device(1).unwrap();
    let mut elsewhere = DeviceScope::new(&second);
    let e = program.run(&mut elsewhere, &[("x", &x)], &[]).unwrap_err();
    assert_eq!(e.to_string(), "the program was compiled for cpu:0, and the scope is on cpu:1");
    let e = scope.insert("v", second.upload(&x).unwrap()).unwrap_err();
    assert_eq!(e.to_string(), "`v` is on cpu:1, and the scope on cpu:0");
    let feed = second.upload(&x).unwrap();
    scope.upload(&states()).unwrap();
    let e = program.run_on_device(&mut scope, &[("x", &feed)], &[]).unwrap_err();
    assert_eq!(e.to_string(), "argument 0 (`%x`) is needed on cpu:0, and is on cpu:1");
    assert_eq!(scope.tensor("w").unwrap(), tensor(&[1.0, 2.0]));
    assert_eq!(scope.remove("w").map(|w| w.dims().to_vec()), Some(vec![2]));
    Ok(())
}

pub(crate) fn declarations_that_contradict_the_text_are_errors() -> Result<()> {
    let device = device()?;
    let message = |change: fn(&mut Lowered)| {
        let mut lowered = step();
        change(&mut lowered);
        let e = lowered.compile(&device).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Program);
        e.to_string()
    };
    assert_eq!(
        message(|l| drop(l.arguments.remove(0))),
        "lowered program: 2 arguments are declared, and the text has 3"
    );
    assert_eq!(
        message(|l| l.arguments[0].dims = vec![3]),
        "lowered program: argument `x` is declared as float32 [3], and is float32 [2] in the text"
    );
    assert_eq!(
        message(|l| l.arguments[2].donated = false),
        "lowered program: argument `w` is declared as not donated, and is donated in the text"
    );
    assert_eq!(
        message(|l| drop(l.results.remove(0))),
        "lowered program: 2 results are declared, and the text has 3"
    );
    assert_eq!(
        message(|l| l.results[0].dtype = DType::I32),
        "lowered program: result `before` is declared as int32 [2], and is float32 [2] in the text"
    );
    assert_eq!(
        message(|l| drop(l.results.pop())),
        "lowered program: no result replaces the donated state `w`"
    );
    assert_eq!(
        message(|l| l.results[2].dims = vec![1]),
        "lowered program: the donated state `w` is float32 [2], and the result that replaces it is float32 [1]"
    );
    assert_eq!(
        message(|l| l.arguments[0].name = "w".into()),
        "lowered program: two arguments have the name `w`"
    );
    assert_eq!(
        message(|l| l.results[0].name = "update".into()),
        "lowered program: two results have the name `update`"
    );
    Ok(())
}

pub(crate) fn threads_share_a_program_each_with_its_scope() -> Result<()> {
    let device = device()?;
    let program = step().compile(&device).unwrap();
    thread::scope(|threads| {
        for factor in [1.0, 3.0] {
            let (program, device) = (&program, &device);
            threads.spawn(move || {
                let mut scope = DeviceScope::new(device);
                scope.upload(&states()).unwrap();
                for _ in 0..500 {
                    program.run(&mut scope, &[("x", &tensor(&[factor, 0.0]))], &["before"]).unwrap();
                }
                assert_eq!(scope.tensor("w").unwrap(), tensor(&[1.0 + 250.0 * factor, 2.0]));
            });
        }
    });
    Ok(())
}

pub(crate) fn replicas_have_their_own_scopes() -> Result<()> {
    let client = client(2)?;
    let lowered = Lowered {
        text: "module @step attributes {mhlo.num_replicas = 2 : i32} {
          func.func @main(%x: tensor<2xf32>, %w: tensor<2xf32> {tf.aliasing_output = 1 : i32})
              -> (tensor<2xf32>, tensor<2xf32>) {
            %sum = \"stablehlo.all_reduce\"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
              ^bb0(%a: tensor<f32>, %b: tensor<f32>):
                %c = stablehlo.add %a, %b : tensor<f32>
                stablehlo.return %c : tensor<f32>
            }) : (tensor<2xf32>) -> tensor<2xf32>
            %next = stablehlo.add %w, %sum : tensor<2xf32>
            return %sum, %next : tensor<2xf32>, tensor<2xf32> } }"
            .into(),
        arguments: vec![
            Argument::feed("x", DType::F32, [2]),
            Argument::state("w", DType::F32, [2]).donated(),
        ],
        results: vec![Output::fetch("sum", DType::F32, [2]), Output::state("w", DType::F32, [2])],
        replicas: 2,
        partitions: 1,
    };
    let devices = client.devices();
    let program = lowered.compile_with(&client, &CompileOptions::new(&devices)).unwrap();
    let mut scopes: Vec<DeviceScope> = devices.iter().map(DeviceScope::new).collect();
    scopes.iter_mut().for_each(|scope| scope.set("w", &tensor(&[0.0, 1.0])).unwrap());
    let addresses = |scopes: &[DeviceScope]| -> Vec<usize> {
        scopes.iter().map(|scope| scope.get("w").unwrap().address().unwrap()).collect()
    };
    let before = addresses(&scopes);
    let (x, y) = (tensor(&[1.0, 2.0]), tensor(&[10.0, 20.0]));
    for step in [1.0, 2.0, 3.0] {
        let fetched = program.run_replicas(&mut scopes, &[&[("x", &x)], &[("x", &y)]], &["sum"]).unwrap();
        assert_eq!(fetched, vec![vec![tensor(&[11.0, 22.0])]; 2]);
        for scope in &scopes {
            assert_eq!(scope.tensor("w").unwrap(), tensor(&[11.0 * step, 22.0 * step + 1.0]));
        }
    }
    assert_eq!(addresses(&scopes), before);

    let e = program.run(&mut scopes[0], &[("x", &x)], &["sum"]).unwrap_err();
    let expected = "the program was compiled for 2 devices; 1 scopes and 1 lists of feeds are given";
    assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Device, expected));
    scopes.swap(0, 1);
    let e = program.run_replicas(&mut scopes, &[&[("x", &x)], &[("x", &y)]], &["sum"]).unwrap_err();
    assert_eq!(e.to_string(), "the program was compiled for cpu:0, and the scope is on cpu:1");
    Ok(())
}

pub(crate) fn run_that_fails_leaves_no_deleted_states() -> Result<()> {
    let device = device()?;
    // The result exceeds the address space.
    let huge = "tensor<70368744177664xf32>";
    let lowered = Lowered {
        text: format!(
            "module {{ func.func @main(%w: tensor<2xf32> {{tf.aliasing_output = 1 : i32}}) -> ({huge}, tensor<2xf32>) {{
              %c = stablehlo.constant dense<1.0> : {huge}
              %next = stablehlo.add %w, %w : tensor<2xf32>
              return %c, %next : {huge}, tensor<2xf32> }} }}"
        ),
        arguments: vec![Argument::state("w", DType::F32, [2]).donated()],
        results: vec![Output::fetch("c", DType::F32, [1 << 46]), Output::state("w", DType::F32, [2])],
        replicas: 1,
        partitions: 1,
    };
    let (program, mut scope) = (lowered.compile(&device).unwrap(), DeviceScope::new(&device));
    scope.set("w", &tensor(&[1.0, 2.0])).unwrap();
    let e = program.run(&mut scope, &[], &[]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory, "{e}");
    if let Ok(w) = scope.get("w") {
        assert_eq!(w.download().unwrap(), tensor(&[1.0, 2.0]));
    }
    Ok(())
}
