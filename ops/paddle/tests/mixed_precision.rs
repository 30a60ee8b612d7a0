//! Programs that PaddlePaddle 2.6.2 has made by `paddle.static.amp.decorate` (`mixed_precision_fixtures.py`).

mod support;

use std::{collections::BTreeMap, fs};

use autobwd::{Builder, DType, Executor, Feed, Result, Scope, Tensor, program::Origin};
use autobwd_ops::{
    Init, Math, Model,
    optim::{Adam, AdamW, GradientClip, LossScaling, MixedPrecision, Optimizer},
};

use support::{assert_close, data, models};

const NAMES: [&str; 5] =
    ["amp_o1_float16", "amp_o2_float16", "amp_o2_bfloat16", "amp_master_grad", "amp_no_master"];
const MEAN: &str = "mean_0.tmp_0";
/// Values of `op_role`.
const FORWARD: u32 = 0;
const BACKWARD: u32 = 1;
const OPTIMIZE: u32 = 2;
const LOSS: u32 = 0x100;

/// The losses of five steps.
fn losses(model: &mut Model, feeds: &[(&str, &dyn Feed)], loss: &str) -> Result<Tensor> {
    let mut executor = Executor::new();
    let mut losses = vec![];
    for _ in 0..5 {
        losses.push(executor.run(&model.program, &mut model.scope, feeds, &[loss])?[0].item()?);
    }
    Tensor::from_f64s(DType::F32, [losses.len()], &losses)
}

fn reloaded(model: &Model) -> Result<Model> {
    let [program, parameters, infos] = autobwd_paddle::to_bytes(model)?;
    autobwd_paddle::from_bytes(&program, Some(&parameters), Some(&infos))
}

#[test]
fn steps_are_those_of_paddle_and_the_same_after_saving() -> Result<()> {
    for name in NAMES {
        let data = data(name)?;
        let feeds: [(&str, &dyn Feed); 2] = [("x", &data["x"]), ("y", &data["y"])];
        let loaded = autobwd_paddle::load(models().join(name))?;
        let again = reloaded(&loaded)?;
        for mut model in [loaded, again] {
            assert_close(&losses(&mut model, &feeds, MEAN)?, &data["losses"]);
            let values = data.iter().filter_map(|(key, value)| Some((key.strip_prefix("value.")?, value)));
            for (name, value) in values {
                let found = model.scope.get(name)?;
                assert_close(&Tensor::from_f64s(DType::F32, found.dims(), &found.to_f64s())?, value);
            }
        }
    }
    Ok(())
}

#[test]
fn updates_write_master_weights_and_casts_the_parameters() -> Result<()> {
    let model = autobwd_paddle::load(models().join("amp_o2_float16"))?;
    let root = model.program.root();
    let dtype =
        |name: &str| model.program.find(name).and_then(|var| root.vars.get(&var)).map(|desc| desc.dtype);
    assert_eq!(dtype("fc_0.w_0"), Some(DType::F16));
    assert_eq!(dtype("fc_0.w_0_fp32_master_0"), Some(DType::F32));
    let lines = model.program.to_string();
    assert!(lines.contains("fc_0.w_0 = cast(X=fc_0.w_0_fp32_master_0, in_dtype=5, out_dtype=4)"), "{lines}");
    // Where the gradients are not finite, updates are skipped; the copy of that truth value stays on the one device.
    assert!(lines.contains("memcpy_0.tmp_0 = assign(X=any_0.tmp_0)"), "{lines}");
    let adams = root.ops.iter().filter(|op| op.ty == "adam");
    assert!(adams.clone().all(|op| op.inputs.find("SkipUpdate").is_some()));
    assert_eq!(adams.count(), 5);
    Ok(())
}

/// The startup program casts float32 parameters to master weights, and calls them 16-bit ones.
#[test]
fn startup_programs_make_master_weights() -> Result<()> {
    let startup = autobwd_paddle::load_program(models().join("amp_o2_bfloat16_startup"))?;
    let mut scope = Scope::new();
    Executor::new().run(&startup, &mut scope, &[], &[])?;
    let (parameter, master) = (scope.get("fc_0.w_0")?, scope.get("fc_0.w_0_fp32_master_0")?);
    assert_eq!((parameter.dtype(), parameter), (DType::F32, master));
    Ok(())
}

#[test]
fn master_weights_without_a_written_slot_are_refused() {
    let mut program = fs::read(models().join("amp_o2_float16.pdmodel")).unwrap();
    // A name of the same length keeps the file valid.
    let (from, to) = (b"MasterParamOut", b"MastorParamOut");
    for at in 0..program.len() - from.len() {
        if program[at..].starts_with(from) {
            program[at..at + to.len()].copy_from_slice(to);
        }
    }
    let e = autobwd_paddle::from_bytes(&program, None, None).unwrap_err().to_string();
    assert!(
        e.contains("`adam` has 1 of `MasterParam` and 0 of `MasterParamOut`, but 1 of `ParamOut`"),
        "{e}"
    );
}

/// A model of one hidden layer with parameters of a dtype, and its values before the first step.
fn perceptron(dtype: DType, optimizer: &dyn Optimizer) -> Result<(Model, String)> {
    let net = Builder::new();
    let parameter = |name: &str, dims: &[usize], seed| {
        net.parameter(name, dtype, dims, move |w| Init::Uniform(-0.7, 0.7).emit(w, seed))
    };
    let (first, bias, second) =
        (parameter("first", &[5, 7], 1), parameter("bias", &[7], 2), parameter("second", &[7, 3], 3));
    let x = net.input("x", DType::F32, &[-1, 5]).cast(dtype);
    let hidden = (x.matmul(&first) + &bias).tanh();
    let scores = hidden.matmul(&second).cast(DType::F32);
    let loss = scores.mean_cross_entropy(&net.input("y", DType::I64, &[-1, 1]));
    optimizer.minimize(&loss)?.complete()?;
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let feeds = vec!["x".into(), "y".into()];
    Ok((Model { program: net.program()?.clone(), feeds, fetches: vec![loss.name()], scope }, loss.name()))
}

#[test]
fn own_programs_of_mixed_precision_are_the_same_after_saving() -> Result<()> {
    let data = data("amp_o2_bfloat16")?;
    let feeds: [(&str, &dyn Feed); 2] = [("x", &data["x"]), ("y", &data["y"])];
    // The first steps overflow.
    let scaling =
        Some(LossScaling { init_loss_scaling: 524288.0, decr_ratio: 0.25, ..LossScaling::default() });
    let scaled = MixedPrecision { scaling, ..DType::F16.into() };
    let adam = Adam::new(0.01).clip(GradientClip::GlobalNorm(0.5));
    for (model, loss) in [
        perceptron(DType::F32, &adam.mixed_precision(scaled))?,
        perceptron(DType::BF16, &AdamW::new(0.01).master_weights())?,
    ] {
        let mut again = reloaded(&model)?;
        let mut model = model;
        let before = losses(&mut model, &feeds, &loss)?.to_f64s();
        assert!(before[4] < before[0], "{before:?}");
        assert_eq!(losses(&mut again, &feeds, &loss)?.to_f64s(), before);
        // PaddlePaddle refuses this operator without gradients.
        assert!(again.program.root().ops.iter().all(|op| op.ty != "update_loss_scaling"));
    }
    Ok(())
}

/// How many operators of a file have each value of `op_role`.
fn roles(program: &[u8]) -> BTreeMap<u32, usize> {
    let attr = b"\x0a\x07op_role\x10\x00\x18";
    let mut roles = BTreeMap::new();
    for at in (0..program.len() - attr.len()).filter(|at| program[*at..].starts_with(attr)) {
        let [low, high] = [0, 1].map(|i| u32::from(program[at + attr.len() + i]));
        let role = if low < 128 { low } else { low - 128 + 128 * high };
        *roles.entry(role).or_default() += 1;
    }
    roles
}

#[test]
fn roles_of_operators_are_those_of_paddle() -> Result<()> {
    let read = fs::read(models().join("amp_o2_float16.pdmodel")).unwrap();
    let model = autobwd_paddle::load(models().join("amp_o2_float16"))?;
    let [written, ..] = autobwd_paddle::to_bytes(&model)?;
    let (read, mut written) = (roles(&read), roles(&written));
    // Casts of three gradients and to three parameters.
    *written.get_mut(&OPTIMIZE).unwrap() -= 6;
    // The scaled loss and its gradient are marked in a file of PaddlePaddle alone.
    let marked = read[&LOSS] + read[&(BACKWARD | LOSS)];
    *written.get_mut(&FORWARD).unwrap() -= marked;
    assert_eq!((written[&FORWARD], written[&BACKWARD]), (read[&FORWARD], read[&BACKWARD]));
    assert_eq!(written[&OPTIMIZE], read[&OPTIMIZE]);

    let adam = Adam::new(0.01).clip(GradientClip::GlobalNorm(0.5)).mixed_precision(DType::F16);
    let (model, _) = perceptron(DType::F32, &adam)?;
    let ops = &model.program.root().ops;
    let forward = ops.iter().position(|op| op.origin == Origin::Seed).unwrap();
    let backward = ops.iter().skip(forward + 1).filter(|op| op.origin != Origin::Model).count();
    let [written, ..] = autobwd_paddle::to_bytes(&model)?;
    let found = roles(&written);
    // With two inputs and an output, but without the loss.
    assert_eq!((found[&FORWARD], found[&LOSS], found[&(BACKWARD | LOSS)]), (forward + 2, 1, 1));
    assert_eq!((found[&BACKWARD], found.len()), (backward, 5));
    Ok(())
}
