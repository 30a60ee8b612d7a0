//! Hand-written forgeries of generated implementations: they may be wrong, but do no harm.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex},
};

use autobwd::{
    Buf, Builder, Cx, DType, Derived, Executor, Expr, Float, Infer, Kernel, Meta, New, NoGrad, OpDesc,
    OpInfoMap, Result, Scope, Var,
    backward::{GradientOptions, gradients},
    emit,
    op::{Arity, Describe, Lanes, Op, OpInfo, Role, Schema, SlotDef, SlotValues},
    register_op,
};
use autobwd_ops::{Init, Math};

/// The contents of a slot, and a function that runs when the kernel is dropped.
struct Holder<V> {
    held: Option<V>,
    at_the_end: Option<fn(&mut V)>,
}
impl<V> Drop for Holder<V> {
    fn drop(&mut self) {
        if let (Some(f), Some(held)) = (self.at_the_end, &mut self.held) {
            f(held);
        }
    }
}

/// `out = w[0]`; the kernel reads `w` and writes `out` again when it is dropped.
struct LastWords<V = Var> {
    w: Holder<V>,
    out: Holder<V>,
}
fn of<V>(held: V) -> Holder<V> {
    Holder { held: Some(held), at_the_end: None }
}
impl<W> Describe<W> for LastWords<W> {
    type Op = LastWords;

    fn into_parts(mut self, to: &mut SlotValues<W>) -> LastWords<()> {
        to.slot(Role::Input, "W", self.w.held.take());
        to.slot(Role::Output, "Out", self.out.held.take());
        LastWords { w: of(()), out: of(()) }
    }
}
impl Op for LastWords {
    const SCHEMA: Schema = Schema {
        name: "attack_last_words",
        inputs: &[SlotDef::new("W", Arity::One, "", 0)],
        outputs: &[SlotDef::new("Out", Arity::One, "", 0)],
        scratch: &[],
        attrs: &[],
        pointwise: false,
        broadcast: false,
        integers: false,
        doc: "",
        file: "",
        line: 0,
    };
    type Grad = NoGrad;
    type Of<W> = LastWords<W>;

    fn read(
        desc: &OpDesc,
        visit: &mut dyn FnMut(Role, &'static str, Var) -> Result<()>,
    ) -> Result<LastWords<()>> {
        visit(Role::Input, "W", desc.inputs.get("W")[0])?;
        visit(Role::Output, "Out", desc.outputs.get("Out")[0])?;
        Ok(LastWords { w: of(()), out: of(()) })
    }
    fn from_desc(desc: &OpDesc) -> Result<Self> {
        Self::from_desc_with(desc, &mut |_, _, var| Ok(var))
    }
    fn fill<W>(_: LastWords<()>, fill: &mut dyn FnMut() -> W) -> LastWords<W> {
        LastWords { w: of(fill()), out: of(fill()) }
    }
    fn outputs<W>(mut of: LastWords<W>, put: &mut dyn FnMut(usize, W)) {
        if let Some(out) = of.out.held.take() {
            put(0, out)
        }
    }
}
impl Infer for LastWords<Meta> {
    fn infer(&mut self) -> Result<()> {
        if let Some(out) = &mut self.out.held {
            out.set(DType::F32, [1]);
        }
        Ok(())
    }
}
thread_local! {
    /// Reports of dropped kernels.
    static TOLD: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
}
fn tell<T>(outcome: Result<T>) {
    TOLD.with_borrow_mut(|told| told.push(outcome.map_or_else(|e| e.to_string(), |_| "memory".into())));
}
impl<'a> Kernel for LastWords<Buf<'a>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.w.at_the_end = Some(|w| tell(w.slice::<f32>().map(|w| w[1000])));
        self.out.at_the_end = Some(|out: &mut Buf<'a>| {
            tell(out.bytes().map(|bytes| bytes[0]));
            tell(out.slice_mut::<f32>().map(|out| out[0] = 1.0));
            tell(out.bytes_mut().map(|out| out[0] = 1));
            tell(out.rows::<f32>().map(drop));
        });
        let (Some(w), Some(out)) = (&self.w.held, &mut self.out.held) else { return Ok(()) };
        out.slice_mut::<f32>()?[0] = w.slice::<f32>()?[0];
        Ok(())
    }
}

fn with(info: &'static OpInfo) -> Result<OpInfoMap> {
    let mut ops = OpInfoMap::linked()?.clone();
    ops.insert(info)?;
    Ok(ops)
}

static LAST_WORDS: OpInfo = OpInfo::kernel::<LastWords>("attacks", "0");

/// Asserts that dropped kernels had no access to memory.
#[track_caller]
fn assert_told() {
    let told = TOLD.take();
    assert_eq!(told.len(), 5, "{told:?}");
    assert!(told.iter().all(|told| told.contains("is used after its kernel has finished")), "{told:?}");
}

#[test]
fn kernel_that_is_dropped_gets_at_no_memory() -> Result<()> {
    let ops = with(&LAST_WORDS)?;
    let words = |w: &Expr| {
        let (w, out) = (of(w.into()), of(New));
        Ok(emit(LastWords { w, out }).out.held.take().expect("an output"))
    };
    let net = Builder::with_ops(ops.clone());
    let w = net.parameter("w", DType::F32, &[1 << 20], |w| Init::Constant(0.5).emit(w, 0));
    let out = words(&w)?;
    let (mut executor, mut scope) = (Executor::with_threads(1).with_ops(ops), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let fetched = executor.run(&net.program()?, &mut scope, &[], &[&out.name()])?;
    assert_eq!(fetched[0].to_f64s(), [0.5]);
    // The memory of `w` is freed before the kernel.
    drop(scope);
    assert!(TOLD.take().is_empty());
    drop(executor);
    assert_told();
    Ok(())
}

/// `out = x`, by a formula that accesses nonexistent slots.
#[register_op(grad = MadeFromIt, name = "attack_peek")]
pub(crate) struct Peek<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Like `x`.
    #[output(like = x)]
    pub out: V,
}
type MadeFromIt = Derived;
impl Kernel for Peek<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}
/// How often a formula was requested.
static COUNT: Mutex<Vec<u64>> = Mutex::new(vec![]);
impl Lanes for Peek<Var> {
    const SLOTS: Schema = Peek::SCHEMA;
    type Attrs = Arc<&'static Mutex<Vec<u64>>>;

    fn lane<F: Float>(count: &Self::Attrs, mut get: impl FnMut(usize) -> F, mut put: impl FnMut(usize, F)) {
        count.lock().unwrap().push(1);
        for far in [1, 77, 1 << 40, usize::MAX] {
            put(far, get(0));
            put(0, get(0) + get(far));
        }
    }
    fn attrs(_: &OpDesc) -> Result<Self::Attrs> {
        Ok(Arc::new(&COUNT))
    }
}
static PEEK: OpInfo = OpInfo::pointwise::<Peek>("attacks", "0");

#[test]
fn formula_reads_and_writes_only_its_own_slots() -> Result<()> {
    let own = OpInfoMap::linked()?.iter().filter(|info| crate::support::is_of_library(info));
    let mut ops = OpInfoMap::from_infos(own)?;
    ops.insert(&PEEK)?;
    let net = Builder::with_ops(ops.clone());
    let x = net.parameter("x", DType::F32, &[20], |x| Init::Constant(0.5).emit(x, 0));
    let out = emit(Peek { x: (&(&x * 1.0)).into(), out: New }).out;
    let (out, loss) = ((out.tanh() * 1.0).name(), out.sum(&[]).name());
    let mut program = net.program()?.clone();
    let grads = gradients(
        &mut program,
        &[&loss],
        &["x"],
        &GradientOptions { ops: Some(&ops), ..Default::default() },
    )?
    .entries();
    let grad = program.name(grads[0].expect("a gradient")).to_string();
    let (mut executor, mut scope) = (Executor::with_threads(1).with_ops(ops), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let fetched = executor.run(&program, &mut scope, &[], &[&out, &grad])?;
    assert!(fetched[0].to_f64s().iter().all(|out| (out - 0.5_f64.tanh()).abs() < 1e-6));
    // It reports each output four times, so its gradient is four times too large: wrong, but finite.
    assert_eq!(fetched[1].to_f64s(), [4.0; 20]);
    assert!(!COUNT.lock().unwrap().is_empty());
    Ok(())
}
