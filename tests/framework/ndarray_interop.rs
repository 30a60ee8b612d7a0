//! Arrays of `ndarray` as tensors, feeds and fetches.

use autobwd::{
    Buf, Builder, Cx, DType, ErrorKind, Executor, Feed, Kernel, Meta, New, NoGrad, Result, Scope, Tensor,
    Var, emit,
    ndarray::{Array, Array1, Array2, ArrayD, Axis, Ix0, Ix1, Ix2, Ix3, IxDyn, Slice, array},
    register_op,
    tensor::Bool,
};
use autobwd_ops::{Init, Math};

#[test]
fn owned_arrays_are_taken_over_and_given_back() -> Result<()> {
    let array = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let (at, copy) = (array.as_ptr(), array.clone());
    let tensor = Tensor::try_from(array)?;
    assert_eq!((tensor.dims(), tensor.slice::<f64>()?.as_ptr()), (&[2, 3][..], at));
    let back: Array2<f64> = tensor.into_array()?;
    assert_eq!((back.as_ptr(), &back), (at, &copy));
    // Also as an array of any rank, and from a vector to a vector.
    let any: ArrayD<f64> = Tensor::try_from(back)?.into_array()?;
    assert_eq!((any.as_ptr(), any.shape()), (at, &[2, 3][..]));
    let numbers = Tensor::from_vec([3, 2], any.into_raw_vec_and_offset().0)?.into_vec::<f64>()?;
    assert_eq!((numbers.as_ptr(), &numbers[..2]), (at, &[1.0, 2.0][..]));
    // A fetched value has no other owner, either.
    let net = Builder::new();
    let y = net.input("x", DType::F32, &[3]).tanh().name();
    let x = Tensor::from_vec([3], vec![0.0_f32; 3])?;
    let y = Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&y])?.remove(0);
    let at = y.slice::<f32>()?.as_ptr();
    assert_eq!(y.into_array::<f32, Ix1>()?.as_ptr(), at);
    Ok(())
}

#[test]
fn arrays_of_any_layout_become_row_major_tensors() -> Result<()> {
    let array = Array::from_shape_fn((3, 4), |(i, j)| (10 * i + j) as i64);
    let expected = |array: &Array2<i64>| Tensor::from_vec(array.shape(), array.iter().copied().collect());
    let transposed = array.clone().reversed_axes();
    assert_eq!(Tensor::try_from(&transposed)?, expected(&transposed)?);
    assert_eq!(Tensor::try_from(transposed.clone())?, expected(&transposed)?);
    // An array that is a slice of its memory: all rows but the first, the first two columns.
    let mut rows = array.clone();
    rows.slice_axis_inplace(Axis(0), Slice::from(1..));
    assert_eq!(Tensor::try_from(rows.clone())?, expected(&rows)?);
    let mut rows = array.clone();
    rows.slice_axis_inplace(Axis(0), Slice::from(..2));
    assert_eq!(Tensor::try_from(rows.clone())?, expected(&rows)?);
    let mut columns = array.clone();
    columns.slice_axis_inplace(Axis(1), Slice::from(..2));
    assert_eq!(Tensor::try_from(columns.clone())?, expected(&columns)?);
    // One element, and none.
    assert_eq!(Tensor::try_from(Array::from_elem((), 3_i32))?.into_array::<i32, Ix0>()?[()], 3);
    let none = Tensor::try_from(Array2::<u8>::zeros((0, 3)))?;
    assert_eq!((none.dims(), none.view::<u8, Ix2>()?.dim()), (&[0, 3][..], (0, 3)));
    let flags = Tensor::try_from(array![true, false].mapv(Bool::from))?;
    assert!(flags.view::<Bool, Ix1>()?[0].get());
    Ok(())
}

#[test]
fn views_read_and_write() -> Result<()> {
    for mut tensor in [Tensor::zeros(DType::F32, &[2, 3])?, Tensor::try_from(Array2::<f32>::zeros((2, 3)))?] {
        tensor.view_mut::<f32, Ix2>()?[[1, 2]] = 5.0;
        tensor.view_mut::<f32, IxDyn>()?[[0, 1].as_slice()] = 2.0;
        assert_eq!(tensor.view::<f32, Ix2>()?, array![[0.0, 2.0, 0.0], [0.0, 0.0, 5.0]]);
        assert_eq!(tensor.to_array::<f32>()?, tensor.view::<f32, IxDyn>()?);
        let e = tensor.view::<f32, Ix3>().unwrap_err();
        assert_eq!(
            (e.kind(), e.message()),
            (ErrorKind::Shape, "the tensor has shape [2, 3], not 3 dimensions")
        );
        assert_eq!(tensor.view_mut::<f64, Ix2>().unwrap_err().kind(), ErrorKind::DType);
        // Memory owned by the tensor is copied into an array.
        assert_eq!(tensor.clone().into_array::<f32, Ix2>()?, tensor.into_array::<f32, Ix2>()?);
    }
    assert!(Tensor::scalar(1.0)?.into_array::<f64, Ix1>().is_err());
    assert!(Tensor::scalar(1.0)?.into_vec::<f32>().is_err());
    Ok(())
}

#[test]
fn arrays_are_fed_and_fetched() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2]);
    let label = net.input("label", DType::I64, &[-1, 1]);
    let w = net.parameter("w", DType::F32, &[2, 3], |w| Init::Uniform(-1.0, 1.0).emit(w, 3));
    let (scores, loss) = (x.matmul(&w), x.matmul(&w).cross_entropy(&label).mean());
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let data = array![[1.0_f32, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]];
    let labels = [0_i64, 2, 1, 1];
    let names = [scores.name(), loss.name()];
    let names = names.each_ref().map(String::as_str);
    // Tensors, arrays, and views that are not row-major give the same results.
    let tensors = (Tensor::try_from(&data)?, Tensor::from_vec([4, 1], labels.to_vec())?);
    let expected =
        executor.run(&net.program()?, &mut scope, &[("x", &tensors.0), ("label", &tensors.1)], &names)?;
    let column = Array2::from_shape_vec((4, 1), labels.to_vec()).unwrap();
    let columns = data.t().as_standard_layout().into_owned();
    let fetched = executor.run(&net.program()?, &mut scope, &[("x", &data), ("label", &column)], &names)?;
    assert_eq!(fetched, expected);
    let feeds: [(&str, &dyn Feed); 2] = [("x", &columns.t()), ("label", &tensors.1)];
    assert_eq!(executor.run(&net.program()?, &mut scope, &feeds, &names)?, expected);
    // Shapes and dtypes are checked like those of tensors.
    let wrong = Array1::<f32>::zeros(4);
    let e = executor.run(&net.program()?, &mut scope, &[("x", &wrong), ("label", &column)], &names);
    assert_eq!(e.unwrap_err().kind(), ErrorKind::Feed);

    let metas = [("x", Meta::new(DType::F32, [4, 2])), ("label", Meta::new(DType::I64, [4, 1]))];
    let mut session = executor.prepare(&net.program()?, &mut scope, &metas, &names)?;
    session.feed("x", &columns.t())?;
    session.feed("label", &column.view())?;
    session.run(&mut scope)?;
    assert_eq!(session.view::<f32, Ix2>(names[0])?, expected[0].view::<f32, Ix2>()?);
    assert_eq!(session.view::<f32, Ix2>(names[1]).unwrap_err().kind(), ErrorKind::Shape);
    let e = session.feed("x", &data.mapv(f64::from)).unwrap_err().to_string();
    assert_eq!(e, "`x` cannot be fed: the session was prepared for float32 [4, 2], not float64 [4, 2]");
    Ok(())
}

#[test]
fn parameters_and_eager_values_are_made_from_arrays() -> Result<()> {
    // Both use memory of their own: adopted memory is copied once, and may have any alignment.
    let mut numbers: Vec<f32> = (0..36).map(|i| i as f32).collect();
    numbers.remove(0);
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[35], |w| Init::Constant(0.0).emit(w, 0));
    let y = w.square().sum(&[]);
    let mut scope = Scope::new();
    scope.set("w", Tensor::try_from(Array1::from_vec(numbers.clone()))?);
    let fetched = Executor::new().run(&net.program()?, &mut scope, &[], &[&y.name()])?;
    let tape = autobwd::eager();
    let leaf = tape.leaf("w", Tensor::try_from(Array1::from_vec(numbers))?);
    let at_once = leaf.square().sum(&[]);
    assert_eq!((at_once.tensor()?, at_once.item()?), (fetched[0].clone(), 14910.0));
    leaf.set(Tensor::try_from(Array1::<f32>::ones(35))?)?;
    assert_eq!(leaf.sum(&[]).item()?, 35.0);
    Ok(())
}

/// Reverses the rows of a matrix by views, after a view of the wrong rank is rejected.
#[register_op(grad = NoGrad)]
pub(crate) struct ReverseRows<V = Var> {
    /// `[m, n]`.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(like = x)]
    pub out: V,
}
impl Kernel for ReverseRows<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let e = self.out.view_mut::<f32, Ix3>().unwrap_err().to_string();
        assert_eq!(e, "`Out`: 3 dimensions are needed, not float32 [2, 2]");
        assert!(self.x.view::<f64, Ix2>().is_err());
        let x = self.x.view::<f32, Ix2>()?;
        assert_eq!(self.x.view::<f32, IxDyn>()?, x.into_dyn());
        for (out, x) in self.out.view_mut::<f32, Ix2>()?.outer_iter_mut().zip(x.outer_iter().rev()) {
            x.assign_to(out);
        }
        Ok(())
    }
}

#[test]
fn kernels_work_on_views() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::try_from(array![[1.0_f32, 2.0], [3.0, 4.0]])?);
    let reversed = emit(ReverseRows { x: (&x).into(), out: New }).out;
    assert_eq!(reversed.tensor()?.into_array::<f32, Ix2>()?, array![[3.0, 4.0], [1.0, 2.0]]);
    Ok(())
}
