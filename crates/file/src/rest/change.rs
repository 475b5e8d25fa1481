//! Changes of directories and files by requests, which ask the open-file table first.

use lazuli_concurrency::FileUse;
use lazuli_content::content_refusal;
use lazuli_extents::{Content, Writer};
use lazuli_protocol::Refusal;
use lazuli_service::internal_error;
use lazuli_store::View;

use crate::FileService;
use crate::opens::Admission;
use crate::tree::content::ContentEdit;
use crate::tree::record::Node;
use crate::tree::spot::Spot;

impl FileService {
    /// Asks the open-file table for a request that changes this name.
    pub(crate) fn admission(&self, spot: &Spot) -> Admission {
        self.opens.admission(spot.patience).committing(self.store.clone(), spot.partition())
    }

    /// Changes a child of a directory. The rule gets the present child and returns the new one. Waits for SMB
    /// clients as far as `usage` requires.
    pub(crate) async fn change_child(
        &self,
        spot: &Spot,
        usage: FileUse,
        mut rule: impl FnMut(&View<'_>, Option<Node>) -> Result<Option<Node>, Refusal>,
    ) -> Result<Option<Node>, Refusal> {
        let mut admission = self.admission(spot);
        loop {
            let changed = self.change_row(spot, None, |view, old| {
                let Some(old) = old else {
                    admission.check(spot.file(spot.parent))?;
                    return rule(view, None);
                };
                let (file, is_directory) = (spot.file(old.id), old.is_directory());
                admission.check(file)?;
                let new = rule(view, Some(old))?;
                // Asked last, because asking breaks caches. Properties of directories are not cached.
                if !is_directory || usage == FileUse::Delete {
                    admission.admit(file, usage)?;
                }
                Ok(new)
            });
            let changed = changed.await;
            if changed.is_ok() || !self.flush_or_wait(&mut admission).await {
                admission.done();
                return changed;
            }
        }
    }

    /// Changes a child like [`FileService::change_child`], for rules that never remove the child.
    pub(crate) async fn write_child(
        &self,
        spot: &Spot,
        usage: FileUse,
        mut rule: impl FnMut(&View<'_>, Option<Node>) -> Result<Node, Refusal>,
    ) -> Result<Node, Refusal> {
        let written = self.change_child(spot, usage, |view, old| rule(view, old).map(Some)).await?;
        written.ok_or_else(|| internal_error(format_args!("{}: no child was written", spot.partition())))
    }

    /// Returns the changed content, durable.
    pub(crate) async fn build_durable_content(
        &self,
        writer: &Writer,
        content: &Content,
        change: ContentEdit,
    ) -> Result<Content, Refusal> {
        if matches!(change, ContentEdit::Keep) {
            return Ok(content.clone());
        }
        let content = self.build_content(writer, content, change).await.map_err(content_refusal)?;
        self.sync(&content).await?;
        Ok(content)
    }

    /// Makes new content durable.
    pub(crate) async fn sync(&self, content: &Content) -> Result<(), Refusal> {
        if content.as_inline().is_some() {
            return Ok(());
        }
        self.extents.sync().await.map_err(content_refusal)
    }
}
