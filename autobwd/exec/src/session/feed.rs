//! Types that can be fed.

use ndarray::{ArrayBase, ArrayViewMut, Data, Dimension};

use crate::Session;
use autobwd_core::{__private::internals::*, Element, Error, Meta, Result, Tensor, with_dtype};

/// Data that can be fed: a [`Tensor`], or an array or view of [`ndarray`] in any layout. It is copied once, into the
/// plan's memory.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor, ndarray::{Ix1, array, s}};
/// use autobwd_ops::Math;
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 2]);
/// let y = x.matmul(&net.input("w", DType::F32, &[2]));
/// let data = array![[1.0_f32, 2.0], [3.0, 4.0], [5.0, 6.0]];
/// let w = Tensor::from_vec([2], vec![1.0_f32, 10.0])?;
/// let feeds: &[(&str, &dyn autobwd::Feed)] = &[("x", &data.slice(s![1.., ..])), ("w", &w)];
/// let mut fetched = Executor::new().run(&net.program()?, &mut Scope::new(), feeds, &[&y.name()])?;
/// assert_eq!(fetched.remove(0).into_array::<f32, Ix1>()?, array![43.0, 65.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
pub trait Feed {
    /// Dtype and dimensions.
    fn meta(&self) -> Meta;

    /// Writes the elements to [`Session::feed_mut`], which returns room for as many as `meta` says.
    ///
    /// # Errors
    /// The errors of [`Session::feed_mut`].
    fn feed(&self, name: &str, session: &mut Session) -> Result<()>;
}

impl Feed for Tensor {
    fn meta(&self) -> Meta {
        Tensor::meta(self)
    }

    fn feed(&self, name: &str, session: &mut Session) -> Result<()> {
        with_dtype!(self.dtype(), T => session.feed_mut::<T>(name)?.copy_from_slice(self.slice()?));
        Ok(())
    }
}

impl<F: Feed + ?Sized> Feed for &F {
    fn meta(&self) -> Meta {
        F::meta(self)
    }

    fn feed(&self, name: &str, session: &mut Session) -> Result<()> {
        F::feed(self, name, session)
    }
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> Feed for ArrayBase<S, D> {
    fn meta(&self) -> Meta {
        Meta::new(T::DTYPE, self.shape())
    }

    fn feed(&self, name: &str, session: &mut Session) -> Result<()> {
        let elements = session.feed_mut::<T>(name)?;
        match self.as_slice() {
            Some(own) => elements.copy_from_slice(own),
            // Row by row: iterators of `ndarray` compute the position of each element.
            None => ArrayViewMut::from_shape(self.raw_dim(), elements).map_err(Error::internal)?.assign(self),
        }
        Ok(())
    }
}
