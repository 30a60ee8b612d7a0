//! Running a prepared session allocates nothing, and plans predict memory correctly.

use std::{fs, sync::atomic::Ordering};
#[cfg(target_os = "linux")]
use std::{thread, time::Duration};

use autobwd::{
    Backward, Buf, Builder, Cx, DType, Executor, Expr, Kernel, Meta, New, NoGrad, Result, Scope, Tensor, Var,
    backward::Recompute,
    emit,
    ndarray::{Array2, Ix2, IxDyn},
    net::{NetOp, Operator, backward},
    register_op,
    tensor::save_tensors,
    viewer::RunReport,
};
use autobwd_benches::workload::Workload;
use autobwd_models::Pretrained;
use autobwd_ops::{
    Math,
    activation::Tanh,
    nn::Linear,
    optim::{Adam, Optimizer},
    quantization::Quantization,
};
use clap::ValueEnum;
use libtest_mimic::{Arguments, Trial};

use support::{
    Case, DIGITS, MLP, SIDE, adam, classifier,
    counting::{HELD, OWN, PEAK, PRODUCTS, TENSORS},
    images, momentum, sequences, sgd, steps, words,
};

mod long_runs;
mod support;

fn main() {
    let mut arguments = Arguments::from_args();
    // Counters are global to the process: tests run one after the other, without a concurrent reporter thread.
    arguments.test_threads = Some(1);
    let trial = |name: &str, test: fn() -> Result<()>| Trial::test(name, move || Ok(test()?));
    let trials = vec![
        trial("step_allocates_nothing", step_allocates_nothing),
        trial("arena_is_tight_and_its_size_known", arena_is_tight_and_its_size_known),
        trial("recomputation_takes_the_planned_memory", recomputation_takes_the_planned_memory),
        trial("loops_save_only_values_read_by_the_gradient", loops_save_only_values_read_by_the_gradient),
        trial("threads_do_not_change_bits", threads_do_not_change_bits),
        trial("nets_are_planned_once", nets_are_planned_once),
        trial("views_allocate_nothing", views_allocate_nothing),
        trial("arrays_are_not_copied", arrays_are_not_copied),
        trial("losses_equal_expected_losses", losses_equal_expected_losses),
        trial("plans_for_many_shapes_are_evicted", long_runs::plans_for_many_shapes_are_evicted),
        trial(
            "plans_for_many_decided_shapes_are_evicted",
            long_runs::plans_for_many_decided_shapes_are_evicted,
        ),
        trial(
            "memory_stays_the_same_while_batch_sizes_change",
            long_runs::memory_stays_the_same_while_batch_sizes_change,
        ),
        trial("models_of_files_are_in_memory_once", models_of_files_are_in_memory_once),
        trial("published_models_are_read_tensor_by_tensor", published_models_are_read_tensor_by_tensor),
        trial("run_log_memory_is_linear_in_its_length", run_log_memory_is_linear_in_its_length),
        #[cfg(target_os = "linux")]
        trial("small_work_wakes_no_thread", small_work_wakes_no_thread),
    ];
    libtest_mimic::run(&arguments, trials).exit()
}

/// Loading reads a file tensor by tensor, and sessions, clones of a scope and predictors copy nothing twice.
fn models_of_files_are_in_memory_once() -> Result<()> {
    const WIDTH: usize = 256;
    let (net, layers) = (Builder::new(), 8);
    let x = net.input("x", DType::F32, &[-1, WIDTH as i64]);
    let y = (0..layers)
        .fold(x, |x, seed| Linear::builder(&net, WIDTH, WIDTH).seed(seed).build().forward(&x).relu());
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (program, fetches) = ((*net.program()?).clone(), vec![y.name()]);
    let model = autobwd_ops::Model { program, feeds: vec!["x".into()], fetches, scope };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    autobwd_onnx::save(&model, &path)?;
    drop((model, net, y));
    let matrix = WIDTH * WIDTH * 4;
    // Of programs, names and tables.
    let (weights, rest) = (layers as usize * matrix, matrix);

    let before = HELD.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    let mut model = autobwd_onnx::load(&path)?;
    let (peak, held) = (PEAK.load(Ordering::SeqCst) - before, HELD.load(Ordering::SeqCst) - before);
    assert!((weights..weights + rest / 2).contains(&held), "{held} bytes for {weights} of weights");
    assert!(peak < weights + matrix + rest / 2, "at most {peak} bytes for {weights} of weights");

    let feeds = [("x", Meta::new(DType::F32, [1, WIDTH]))];
    let fetches: Vec<&str> = model.fetches.iter().map(String::as_str).collect();
    PEAK.store(HELD.load(Ordering::SeqCst), Ordering::SeqCst);
    let session = Executor::with_threads(1).prepare(&model.program, &mut model.scope, &feeds, &fetches)?;
    let peak = PEAK.load(Ordering::SeqCst) - before;
    assert!(peak < weights + rest, "at most {peak} bytes for a session with {weights} of weights");

    let path = folder.path().join("model.safetensors");
    PEAK.store(HELD.load(Ordering::SeqCst), Ordering::SeqCst);
    let before_saving = HELD.load(Ordering::SeqCst);
    model.scope.save(&path)?;
    let peak = PEAK.load(Ordering::SeqCst) - before_saving;
    assert!(peak < rest / 2, "at most {peak} bytes to save {weights} of weights");
    let before_loading = HELD.load(Ordering::SeqCst);
    let mut scope = Scope::new();
    scope.load(&path)?;
    let peak = PEAK.load(Ordering::SeqCst) - before_loading;
    assert!(peak < weights + rest / 2, "at most {peak} bytes to load {weights} of weights");
    drop((session, model, scope));
    let left = HELD.load(Ordering::SeqCst) - before;
    assert!(left < rest / 4, "{left} bytes are left");
    Ok(())
}

/// Loading a published model takes the memory of the model and of one tensor, also if tensors are converted or quantised.
fn published_models_are_read_tensor_by_tensor() -> Result<()> {
    const WIDTH: usize = 512;
    const LAYERS: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        r#"{{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": {WIDTH}, "intermediate_size": {WIDTH},
            "num_hidden_layers": {LAYERS}, "num_attention_heads": 8, "vocab_size": {WIDTH}, "tie_word_embeddings": true}}"#
    );
    fs::write(folder.path().join("config.json"), config).unwrap();
    let projections = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| format!("self_attn.{name}.weight"));
    let gated = ["gate_proj", "up_proj", "down_proj"].map(|name| format!("mlp.{name}.weight"));
    let norms = ["input_layernorm.weight", "post_attention_layernorm.weight"].map(String::from);
    let of_layer: Vec<String> = projections.into_iter().chain(gated).chain(norms).collect();
    let names = (0..LAYERS).flat_map(|i| of_layer.iter().map(move |name| format!("model.layers.{i}.{name}")));
    let others = ["model.embed_tokens.weight", "model.norm.weight"].map(String::from);
    let mut tensors = vec![];
    for name in names.chain(others) {
        let dims = if name.contains("norm") { vec![WIDTH] } else { vec![WIDTH; 2] };
        tensors.push((name, Tensor::zeros(DType::BF16, &dims)?));
    }
    let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    save_tensors(folder.path().join("model.safetensors"), named)?;
    drop(tensors);

    let matrix = WIDTH * WIDTH * 4;
    let pretrained = Pretrained::open(folder.path());
    for (pretrained, weights) in [
        (pretrained.clone().dtype(DType::BF16), (7 * LAYERS + 1) * matrix / 2),
        (pretrained.clone(), (7 * LAYERS + 1) * matrix),
        // A byte and an eighth for each, and the table of tokens, which the head shares.
        (pretrained.quantize(Quantization::INT8), 7 * LAYERS * matrix * 9 / 32 + matrix),
    ] {
        let before = HELD.load(Ordering::SeqCst);
        PEAK.store(before, Ordering::SeqCst);
        let model = pretrained.load()?;
        let (peak, held) = (PEAK.load(Ordering::SeqCst) - before, HELD.load(Ordering::SeqCst) - before);
        assert!((weights..weights + matrix).contains(&held), "{held} bytes for {weights} of weights");
        // A matrix of the file, and the same one converted.
        assert!(peak < held + 2 * matrix, "at most {peak} bytes for {held}");
        drop(model);
    }
    Ok(())
}

fn step_allocates_nothing() -> Result<()> {
    let cases = [
        ("digits", classifier(&DIGITS, 32, &adam)?),
        ("digits of an odd batch", classifier(&DIGITS, 29, &momentum)?),
        ("words", words(&sgd)?),
        ("words with moments", words(&adam)?),
        ("words with momentum", words(&momentum)?),
        ("images", images(29, &sgd)?),
        ("one image", images(1, &sgd)?),
        ("sequences", sequences(19, &adam)?),
        ("one sequence", sequences(1, &sgd)?),
    ];
    let workloads = Workload::value_variants().iter().map(|w| Ok((w.name(), Case::of(*w)?)));
    for (name, mut case) in cases.into_iter().chain(workloads.collect::<Result<Vec<_>>>()?) {
        for threads in [1, 2] {
            let mut session = case.session(threads)?;
            // The library's scratch memory and the worker's own state are allocated in the first steps.
            for _ in 0..3 {
                case.step(&mut session)?;
            }
            let before = OWN.load(Ordering::SeqCst);
            for _ in 0..10 {
                case.step(&mut session)?;
            }
            assert_eq!(OWN.load(Ordering::SeqCst) - before, 0, "{name} with {threads} threads");
        }
    }
    Ok(())
}

fn arena_is_tight_and_its_size_known() -> Result<()> {
    let cases = [
        ("mlp", classifier(&MLP, 128, &adam)?),
        ("digits", classifier(&DIGITS, 32, &adam)?),
        ("images", images(32, &adam)?),
        ("sequences", sequences(19, &adam)?),
    ];
    let workloads = Workload::value_variants().iter().map(|w| Ok((w.name(), Case::of(*w)?)));
    for (name, mut case) in cases.into_iter().chain(workloads.collect::<Result<Vec<_>>>()?) {
        // Parameters are in the scope; the session allocates the rest, and running allocates no more.
        drop(case.session(2)?);
        let before = TENSORS.load(Ordering::SeqCst);
        let mut session = case.session(2)?;
        let products = PRODUCTS.load(Ordering::SeqCst);
        for steps in [0, 3] {
            for _ in 0..steps {
                case.step(&mut session)?;
            }
            let taken = TENSORS.load(Ordering::SeqCst) - before;
            assert_eq!(session.peak_bytes(), taken, "{name} after {steps} steps");
        }
        // The matrix product library allocates more for products only.
        let products = PRODUCTS.load(Ordering::SeqCst) - products;
        assert!(products == 0 || !name.starts_with("chain"), "{name}: {products}");
        let ratio = session.arena_bytes() as f64 / session.live_bytes() as f64;
        assert!((1.0..=1.05).contains(&ratio), "{name}: arena {ratio} of the live bytes");
    }
    Ok(())
}

fn recomputation_takes_the_planned_memory() -> Result<()> {
    let (sizes, batch) = ([&[64; 20][..], &[10]].concat(), 500);
    let feeds = [("x", Meta::new(DType::F32, [batch, 64])), ("y", Meta::new(DType::I64, [batch, 1]))];
    let mut losses = vec![];
    let mut last = usize::MAX;
    for budget in [usize::MAX, 2_000_000, 1_500_000] {
        let backward = Backward { recompute: Recompute::auto(budget, &feeds), ..Backward::default() };
        let optimizer = |loss: &Expr| Adam::new(0.001).minimize_with(loss, &backward).map(drop);
        let mut case = classifier(&sizes, batch, &optimizer)?;
        let before = TENSORS.load(Ordering::SeqCst);
        let mut session = case.session(1)?;
        let taken = TENSORS.load(Ordering::SeqCst) - before;
        assert_eq!(session.peak_bytes(), taken);
        assert!(session.arena_bytes() <= budget && taken < last, "{taken} for {budget}, {last} before");
        last = taken;
        losses.push((0..3).map(|_| case.step(&mut session)).collect::<Result<Vec<_>>>()?);
    }
    assert!(losses.iter().all(|l| *l == losses[0]), "{losses:?}");
    Ok(())
}

/// Reverses the columns of a matrix, by views of fixed and of dynamic rank.
#[register_op(grad = NoGrad)]
struct ReverseColumns<V = Var> {
    /// `[m, n]`.
    #[input]
    x: V,
    /// Same shape as `x`.
    #[output(like = x)]
    out: V,
}
impl Kernel for ReverseColumns<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let columns = self.x.view::<f32, Ix2>()?.ncols();
        let x = self.x.view::<f32, IxDyn>()?;
        for ((i, j), out) in self.out.view_mut::<f32, Ix2>()?.indexed_iter_mut() {
            *out = x[[i, columns - 1 - j].as_slice()];
        }
        self.out.view_mut::<f32, IxDyn>()?.mapv_inplace(|x| -x);
        Ok(())
    }
}

fn views_allocate_nothing() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2, 3]);
    let out = emit(ReverseColumns { x: (&x).into(), out: New }).out.name();
    let x = Tensor::from_vec([2, 3], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    let mut scope = Scope::new();
    let mut session =
        Executor::with_threads(1).prepare(&net.program()?, &mut scope, &[("x", x.meta())], &[&out])?;
    let before = OWN.load(Ordering::SeqCst);
    for _ in 0..10 {
        session.feed("x", &x.view::<f32, Ix2>()?)?;
        session.run(&mut scope)?;
        assert_eq!(session.view::<f32, Ix2>(&out)?[[1, 0]], -6.0);
    }
    assert_eq!(OWN.load(Ordering::SeqCst) - before, 0);
    Ok(())
}

fn nets_are_planned_once() -> Result<()> {
    let tanh = |k: usize| Operator::of(Tanh { x: format!("x{k}"), out: format!("x{}", k + 1) });
    let net = Operator::from(NetOp::new("net", (0..30).map(tanh))?);
    let gradient = backward(&net, &[])?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    let mut counts = vec![];
    // The third has another shape.
    for n in [8, 8, 9, 8, 9] {
        for name in ["x0", "x30@GRAD"] {
            scope.set(name, Tensor::from_vec([n], vec![0.5_f32; n])?);
        }
        let before = OWN.load(Ordering::SeqCst);
        net.run(&mut executor, &mut scope)?;
        gradient.run(&mut executor, &mut scope)?;
        counts.push(OWN.load(Ordering::SeqCst) - before);
    }
    // With a known shape, only results are copied to the scope; planning takes thousands of allocations.
    assert!(counts[1].max(counts[3]).max(counts[4]) * 5 < counts[0].min(counts[2]), "{counts:?}");
    Ok(())
}

fn arrays_are_not_copied() -> Result<()> {
    let array = Array2::<f64>::ones((100, 100));
    let before = OWN.load(Ordering::SeqCst);
    let tensor = Tensor::try_from(array)?;
    let back: Array2<f64> = tensor.into_array()?;
    assert_eq!((OWN.load(Ordering::SeqCst) - before, back.sum()), (0, 10_000.0));
    Ok(())
}

fn loops_save_only_values_read_by_the_gradient() -> Result<()> {
    for is_loop in [true, false] {
        let taken = |count: usize| -> Result<usize> {
            let mut case = steps(count, is_loop)?;
            let before = TENSORS.load(Ordering::SeqCst);
            let mut session = case.session(1)?;
            case.step(&mut session)?;
            let taken = TENSORS.load(Ordering::SeqCst) - before;
            let before = OWN.load(Ordering::SeqCst);
            for _ in 0..3 {
                case.step(&mut session)?;
            }
            // The next run reuses the saved step state.
            assert_eq!(OWN.load(Ordering::SeqCst) - before, 0, "{count} steps, loop: {is_loop}");
            Ok(taken)
        };
        // For each step, the gradient reads the state before and the one after.
        let step = 2 * SIDE * SIDE * 4;
        let (few, some, many) = (taken(10)?, taken(20)?, taken(40)?);
        assert_eq!((some - few, many - some), (10 * step, 20 * step), "loop: {is_loop}");
    }
    Ok(())
}

fn threads_do_not_change_bits() -> Result<()> {
    type Make = Box<dyn Fn() -> Result<Case>>;
    let cases: [(&str, Make); 3] = [
        ("mlp", Box::new(|| classifier(&MLP, 128, &momentum))),
        ("images", Box::new(|| images(29, &momentum))),
        ("sequences", Box::new(|| sequences(29, &momentum))),
    ];
    let workloads = Workload::value_variants().iter().map(|w| {
        let make: Make = Box::new(|| Case::of(*w));
        (w.name(), make)
    });
    for (name, case) in cases.into_iter().chain(workloads) {
        let mut runs = vec![];
        for threads in [1, 2, 3, 7] {
            let mut case = case()?;
            let mut session = case.session(threads)?;
            let losses = (0..5).map(|_| case.step(&mut session)).collect::<Result<Vec<_>>>()?;
            let weights: Vec<Tensor> = case.scope.iter().map(|(_, t)| t.clone()).collect();
            runs.push((losses, weights));
        }
        assert!(runs.iter().all(|run| *run == runs[0]), "{name}");
        assert!(runs[0].0[4] < runs[0].0[0], "the loss of {name} does not fall: {:?}", runs[0].0);
    }
    Ok(())
}

fn losses_equal_expected_losses() -> Result<()> {
    for workload in Workload::value_variants() {
        let mut case = Case::of(*workload)?;
        let mut session = case.session(1)?;
        let losses = (0..10).map(|_| case.step(&mut session)).collect::<Result<Vec<_>>>()?;
        let (name, expected) = (workload.name(), workload.expected());
        assert!(workload.expects(losses[0], losses[9]), "{name}: {losses:?}, expected {expected:?}");
    }
    Ok(())
}

/// A log in which each line names another value.
fn run_log_memory_is_linear_in_its_length() -> Result<()> {
    let mut log = "{\"schema\":\"autobwd.log/1\"}\n".to_string();
    for step in 0..6_000 {
        let values = if step < 2_000 { String::new() } else { format!("\"n{step}\":1.0") };
        log += &format!("{{\"step\":{step},\"time_s\":{step},\"values\":{{{values}}}}}\n");
    }
    let before = HELD.load(Ordering::SeqCst);
    let mut report = RunReport::new();
    report.add_run("run", log.as_bytes())?;
    let held = HELD.load(Ordering::SeqCst) - before;
    assert!(held < 8 * log.len(), "{held} bytes for {} bytes", log.len());
    Ok(())
}

/// How often workers have gone to sleep, once they sleep.
#[cfg(target_os = "linux")]
fn sleeps() -> u64 {
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|rest| rest.trim().to_string()).unwrap_or_default()
    };
    loop {
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
        let statuses = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
        let helpers: Vec<String> =
            statuses.filter(|status| field(status, "Name:").starts_with("autobwd-")).collect();
        assert!(!helpers.is_empty(), "there are no helper threads");
        if helpers.iter().all(|status| field(status, "State:").starts_with('S')) {
            let times = helpers.iter().map(|status| field(status, "voluntary_ctxt_switches:"));
            return times.map(|times| times.parse::<u64>().unwrap()).sum();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(target_os = "linux")]
fn small_work_wakes_no_thread() -> Result<()> {
    for (workload, is_shared) in
        [(Workload::TinyMlp, false), (Workload::ChainSmall, false), (Workload::Mlp, true)]
    {
        let mut case = Case::of(workload)?;
        let mut session = case.session(2)?;
        let before = sleeps();
        for _ in 0..20 {
            case.step(&mut session)?;
        }
        assert_eq!(sleeps() > before, is_shared, "{}", workload.name());
    }
    Ok(())
}
