//! Compares the table of error codes with the protocol's own lists.

use std::collections::BTreeSet;

use lazuli_protocol::ErrorCode;

/// Codes by status, as the protocol's reference lists them for each service. Codes of several services are
/// repeated.
const LISTED: &[(u16, &str)] = &[
    // Common.
    (
        400,
        "ConditionHeadersNotSupported EmptyMetadataKey InvalidAuthenticationInfo InvalidHeaderValue InvalidHttpVerb
         InvalidInput InvalidMd5 InvalidMetadata InvalidQueryParameterValue InvalidResourceName InvalidUri
         InvalidXmlDocument InvalidXmlNodeValue Md5Mismatch MetadataTooLarge MissingRequiredHeader
         MissingRequiredQueryParameter MissingRequiredXmlNode MultipleConditionHeadersNotSupported OutOfRangeInput
         OutOfRangeQueryParameterValue RequestUrlFailedToParse UnsatisfiableCondition UnsupportedHeader
         UnsupportedQueryParameter UnsupportedXmlNode",
    ),
    (401, "NoAuthenticationInformation"),
    (
        403,
        "AccountIsDisabled AuthenticationFailed InsufficientAccountPermissions AuthorizationFailure
         AuthorizationPermissionMismatch AuthorizationProtocolMismatch AuthorizationResourceTypeMismatch
         AuthorizationServiceMismatch AuthorizationSourceIPMismatch QueryParameterSddInvalid
         QueryParameterSasMandatory RequestForbiddenByContainerEncryptionPolicy CorsPreflightFailure",
    ),
    (404, "ResourceNotFound"),
    (405, "UnsupportedHttpVerb"),
    (409, "ResourceAlreadyExists ResourceTypeMismatch AccountAlreadyExists AccountBeingCreated"),
    (411, "MissingContentLengthHeader"),
    (412, "ConditionNotMet"),
    (413, "RequestBodyTooLarge"),
    (416, "InvalidRange"),
    (500, "InternalError OperationTimedOut"),
    (503, "ServerBusy"),
    // Blob.
    (
        400,
        "BlockListTooLong InvalidBlobOrBlock InvalidBlobTier InvalidBlockId InvalidBlockList InvalidOperation
         InvalidVersionForPageBlobOperation CopyAcrossAccountsNotSupported PreviousSnapshotCannotBeNewer
         Crc64Mismatch EmptyTagName DuplicateTagNames InvalidTags TagsTooLarge AllBatchSubRequestsShouldBeSameApi
         BothUserTagsAndSourceTagsCopyPresentException ExceedsMaxBatchRequestCount FeatureNotEnabled
         MutuallyExclusiveQueryParameters BothCrc64AndMd5HeaderPresent BothCrc64AndMd5RangeHeaderPresent",
    ),
    (403, "UnauthorizedBlobOverwrite OperationNotAllowedOnRootBlob"),
    (404, "WebContentNotFound BlobNotFound ContainerNotFound CannotVerifyCopySource"),
    (
        409,
        "BlobAlreadyExists BlobArchived BlobBeingRehydrated BlobNotArchived BlobIsSealed BlobImmutableDueToPolicy
         BlobImmutableDueToLegalHold BlobOverwritten BlobTierInadequateForContentLength
         BlobUsesCustomerSpecifiedEncryption BlobDoesNotUseCustomerSpecifiedEncryption
         BlobCustomerSpecifiedEncryptionMismatch BlobOperationNotSupported BlockCountExceedsLimit CannotChangeToLowerTier
         ContainerAlreadyExists ContainerBeingDeleted ContainerDisabled ContentLengthLargerThanTierLimit
         CopyIdMismatch FeatureVersionMismatch IncrementalCopyBlobMismatch
         IncrementalCopyOfEarlierVersionSnapshotNotAllowed IncrementalCopySourceMustBeSnapshot InvalidBlobType
         InvalidSourceBlobType InvalidSourceBlobUrl LeaseIdMismatchWithLeaseOperation
         LeaseNotPresentWithLeaseOperation LeaseAlreadyPresent LeaseAlreadyBroken LeaseIsBreakingAndCannotBeAcquired
         LeaseIsBreakingAndCannotBeChanged LeaseIsBrokenAndCannotBeRenewed NoPendingCopyOperation
         OperationNotAllowedOnIncrementalCopyBlob PendingCopyOperation PreviousSnapshotNotFound
         PreviousSnapshotOperationNotSupported PublicAccessNotPermitted SequenceNumberIncrementTooLarge
         SnapshotCountExceeded SnapshotOperationRateExceeded SnapshotsPresent SystemInUse BlobSnapshotNotSoftDeleted
         ImmutabilityPolicyDeleteOnLockedPolicy",
    ),
    (
        412,
        "AccessTierChangeTimeConditionNotMet AppendPositionConditionNotMet InfiniteLeaseDurationRequired LeaseIdMissing
         LeaseIdMismatchWithBlobOperation LeaseIdMismatchWithContainerOperation LeaseNotPresentWithBlobOperation
         LeaseNotPresentWithContainerOperation LeaseLost MaxBlobSizeConditionNotMet SequenceNumberConditionNotMet
         SourceConditionNotMet TargetConditionNotMet",
    ),
    (416, "InvalidPageRange"),
    // Queue.
    (400, "InvalidMarker MessageTooLarge PopReceiptMismatch"),
    (404, "MessageNotFound QueueNotFound"),
    (409, "QueueAlreadyExists QueueBeingDeleted QueueDisabled QueueNotEmpty"),
    // Table.
    (
        400,
        "CommandsInBatchActOnDifferentPartitions DuplicatePropertiesSpecified EntityTooLarge
         HostInformationNotPresent InvalidDuplicateRow InvalidInput InvalidValueType OutOfRangeInput PropertiesNeedValue
         PropertyNameInvalid PropertyNameTooLong PropertyValueTooLarge TooManyProperties XMethodIncorrectCount
         XMethodIncorrectValue XMethodNotUsingPost",
    ),
    (404, "EntityNotFound TableNotFound ResourceNotFound"),
    (405, "MethodNotAllowed"),
    (409, "EntityAlreadyExists TableAlreadyExists TableBeingDeleted"),
    (412, "UpdateConditionNotSatisfied"),
    (415, "JsonFormatNotSupported AtomFormatNotSupported MediaTypeNotSupported"),
    (501, "NotImplemented"),
    // File.
    (
        400,
        "InvalidFileOrDirectoryPathName FileInvalidPermission FileInvalidPermissionKey
         CannotConvertToSddlDueToCustomAce HandleLimitExceeded InvalidContinuationToken
         ShareSnapshotOperationNotSupported",
    ),
    (403, "ShareDisabled ShareSizeLimitReached"),
    (404, "ParentNotFound ShareNotFound ShareSnapshotNotFound ResourceNotFound"),
    (
        409,
        "CannotDeleteFileOrDirectory ContainerQuotaDowngradeNotAllowed DeletePending DeleteShareWhenSnapshotLeased
         DirectoryNotEmpty FileGenerationMismatch FileLockConflict FileOpenBySmbClient
         FileShareAccessTierTransitionNotAllowed PreviousSnapshotNotFound ReadOnlyAttribute ResourceAlreadyExists
         ResourceTypeMismatch SMBDeletePending ShareAlreadyExists ShareBeingDeleted ShareHasSnapshots
         ShareSnapshotCountExceeded ShareSnapshotInProgress SharingViolation",
    ),
    (412, "LeaseIdMismatchWithFileOperation LeaseNotPresentWithFileOperation LeaseIdMissing"),
    (500, "ClientCacheFlushDelay"),
    // Data Lake.
    (
        400,
        "ContentLengthMustBeZero InvalidFlushPosition InvalidPropertyName InvalidSourceUri UnsupportedRestVersion
         PathIsTooDeep",
    ),
    (404, "FilesystemNotFound PathNotFound SourcePathNotFound RenameDestinationParentPathNotFound"),
    (
        409,
        "FilesystemAlreadyExists FilesystemBeingDeleted PathAlreadyExists PathConflict DirectoryNotEmpty
         DestinationPathIsBeingDeleted SourcePathIsBeingDeleted InvalidDestinationPath InvalidFlushOperation
         InvalidRenameSourcePath InvalidSourceOrDestinationResourceType LeaseIsAlreadyBroken LeaseNameMismatch",
    ),
    (412, "LeaseIdMismatch LeaseIdMissing LeaseLost LeaseNotPresent ConditionNotMet SourceConditionNotMet"),
];

#[test]
fn the_table_has_exactly_the_documented_codes_and_statuses() {
    let listed: BTreeSet<(&str, u16)> = LISTED
        .iter()
        .flat_map(|(status, codes)| codes.split_whitespace().map(|code| (code, *status)))
        .collect();
    let table: BTreeSet<(&str, u16)> =
        ErrorCode::ALL.iter().map(|code| (code.name(), code.status().as_u16())).collect();
    let (missing, extra): (Vec<_>, Vec<_>) =
        (listed.difference(&table).collect(), table.difference(&listed).collect());
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:?}, not listed: {extra:?}");
}

#[test]
fn no_code_is_listed_twice() {
    let names: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
    assert_eq!(names.len(), ErrorCode::ALL.len());
}

#[test]
fn every_message_is_a_sentence_on_one_line() {
    for code in ErrorCode::ALL {
        let message = code.message();
        assert!(message.ends_with('.') && !message.contains('\n'), "{}: {message}", code.name());
        assert!(message.starts_with(|c: char| c.is_uppercase()), "{}: {message}", code.name());
    }
}
